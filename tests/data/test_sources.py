"""Sources: known facts about each data set; files that are missing or damaged."""

import gzip

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.utils import Bunch

from fedsieve.core.errors import ConfigError, DataError
from fedsieve.core.keys import Key
from fedsieve.data.sources import registry
from fedsieve.data.sources.texts import speeches

KEY = Key(0)
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def histogram(y):
    return y.bincount().tolist()


def write_idx(path, array, *, cut=0):
    """An idx.gz file of a uint8 array, the last `cut` bytes of its content left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content[: len(content) - cut]))


def write_mnist(root, **labels):
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    for part in ("train", "t10k"):
        write_idx(root / f"MNIST/raw/{part}-images-idx3-ubyte.gz", images)
        write_idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte.gz", np.arange(3, dtype=np.uint8))
    return images


@pytest.mark.parametrize("row", registry.catalogue(), ids=lambda row: row.name)
def test_catalogue_states_the_number_of_examples(loaded, row):
    data = loaded(row.name)
    assert f"{len(data.x)} + {len(data.x_test)}" == row.examples


@pytest.mark.parametrize(
    "name", ["digits", "mnist", "fashion_mnist", "emnist_letters", "cifar10", "cifar100_subset"]
)
def test_pixels_are_standardised(loaded, name):
    data = loaded(name)
    pixels = data.x.double().flatten(0, 2)
    scale, shift = torch.tensor(data.scale), torch.tensor(data.shift)
    # The constants are rounded to four digits of pixels in 0..1.
    torch.testing.assert_close(
        pixels.mean(0) * scale + shift, torch.zeros(pixels.shape[1]).double(), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(
        pixels.std(0) * scale, torch.ones(pixels.shape[1]).double(), atol=1e-3, rtol=0
    )


def test_digits_hold_out_every_fifth_image_of_each_class():
    data = registry.load("digits", None, KEY)
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert histogram(data.y_test) == [n // 5 for n in counts]
    assert histogram(data.y) == [n - n // 5 for n in counts]
    assert data.input_shape == (1, 8, 8)


def test_mnist_has_its_published_histograms(loaded):
    data = loaded("mnist")
    assert histogram(data.y) == MNIST_TRAIN
    assert histogram(data.y_test) == MNIST_TEST
    assert data.x.float().mean().item() == pytest.approx(33.318, abs=1e-3)
    assert data.input_shape == (1, 28, 28)


def test_qmnist_deals_the_training_digits_to_539_writers(loaded):
    data, mnist = loaded("qmnist_writers"), loaded("mnist")
    assert histogram(torch.cat([data.y, data.y_test])) == MNIST_TRAIN
    held, kept = data.owners_test.bincount(), data.owners.bincount()
    sizes = held + kept
    assert len(sizes) == 539
    assert (sizes.min(), sizes.max(), sizes.median()) == (19, 131, 116)
    assert held.equal(sizes // 5)
    total = data.x.long().sum() + data.x_test.long().sum()
    assert total == mnist.x.long().sum()


def test_fashion_mnist_is_balanced(loaded):
    data = loaded("fashion_mnist")
    assert histogram(data.y) == [6000] * 10
    assert histogram(data.y_test) == [1000] * 10
    assert data.x.float().mean().item() == pytest.approx(72.94, abs=5e-3)


def test_emnist_letters_are_numbered_from_zero_and_upright(loaded):
    data = loaded("emnist_letters")
    assert histogram(data.y) == [4800] * 26
    assert histogram(data.y_test) == [800] * 26
    # An upright l or I (classes 8 and 11) is a tall stroke: its columns differ, its rows do not.
    strokes = data.x[data.y == 8, ..., 0].float().mean(0)
    assert strokes.sum(0).var() > strokes.sum(1).var()


def test_cifar10_has_the_original_bytes(loaded):
    data = loaded("cifar10")
    assert data.input_shape == (3, 32, 32)
    assert histogram(data.y) == [5000] * 10
    assert histogram(data.y_test) == [1000] * 10
    assert data.y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert data.y_test[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, airplane
    assert data.x[0, 0, 0].tolist() == [59, 62, 63]


def test_cifar100_subset_goes_round_the_classes(loaded):
    data = loaded("cifar100_subset")
    assert data.y.equal(torch.arange(10000) % 100)
    assert data.y_test.equal(torch.arange(2000) % 100)
    assert data.x.shape == (10000, 32, 32, 3)


def test_windows_of_tiny_shakespeare_continue_with_their_target(loaded, data_root):
    data = loaded("tiny_shakespeare")
    text = gzip.decompress((data_root / "tinyshakespeare/input.txt.gz").read_bytes()).decode()
    lines = speeches(text)
    assert len(text) == 1115394
    assert len(lines) == 299
    alphabet = sorted(set(text))
    assert data.num_outputs == len(alphabet) == 65
    kept = [t for t in lines.values() if len(t) * 4 // 5 > 80 and len(t) - len(t) * 4 // 5 > 80]
    assert data.owners.unique().tolist() == list(range(len(kept)))
    assert data.owners_test.unique().tolist() == list(range(len(kept)))
    first = "".join(alphabet[i] for i in [*data.x[0], data.y[0]])
    second = "".join(alphabet[i] for i in [*data.x[1], data.y[1]])
    assert kept[0].startswith(first[:80] + second)
    assert first[80] == second[0]
    test_window = "".join(alphabet[i] for i in [*data.x_test[0], data.y_test[0]])
    assert kept[0][len(kept[0]) * 4 // 5 :].startswith(test_window)


def test_a_longer_window_leaves_out_more_speakers(loaded, data_root):
    longer = loaded("tiny_shakespeare(window=400)")
    assert longer.input_shape == (400,)
    assert longer.owners.max() < loaded("tiny_shakespeare").owners.max()
    with pytest.raises(DataError, match="Lower window"):
        registry.load("tiny_shakespeare(window=1000000)", data_root, KEY)


def test_delicious_has_500_words_and_983_tags(loaded):
    data = loaded("delicious")
    assert data.kind == "labels"
    assert data.x.shape == (12920, 500)
    assert data.y_test.shape == (3185, 983)
    assert sorted(data.x.unique().tolist()) == [0, 1]
    assert (data.y.sum(1) > 0).float().mean() > 0.99


def test_delicious_may_be_cut_to_its_most_frequent_labels(loaded):
    whole = loaded("delicious")
    cut = loaded("delicious(labels=103)")
    assert cut.num_outputs == cut.y.shape[1] == cut.y_test.shape[1] == 103
    often = sorted(whole.y.sum(0).tolist(), reverse=True)
    assert sorted(cut.y.sum(0).tolist(), reverse=True) == often[:103]
    places = [int((whole.y == column[:, None]).all(0).nonzero()[0]) for column in cut.y.T[:5]]
    assert places == sorted(places)
    for place, column in zip(places, cut.y_test.T, strict=False):
        assert torch.equal(whole.y_test[:, place], column)


def test_rcv1_rows_have_unit_norm(loaded):
    data = loaded("rcv1_small")
    assert data.input_shape == (47236,)
    assert histogram(data.y) == [541, 459]
    assert histogram(data.y_test) == [255, 245]
    torch.testing.assert_close(data.x.norm(dim=1), torch.ones(1000), atol=1e-4, rtol=0)


def test_missing_files_are_all_named_with_where_they_belong(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError) as error:
        registry.load("mnist", tmp_path, KEY)
    message = str(error.value)
    assert "missing MNIST/raw/t10k-labels-idx1-ubyte.gz. " in message
    assert str(tmp_path) in message
    assert "FEDSIEVE_DATA" in message
    assert "--data-root" in message


def test_folders_are_searched_in_order(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("FEDSIEVE_DATA", raising=False)
    with pytest.raises(DataError, match=r"here/data"):
        registry.load("mnist", None, KEY)
    write_mnist(tmp_path / "here/data")
    assert len(registry.load("mnist", None, KEY).x) == 3
    monkeypatch.setenv("FEDSIEVE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        registry.load("mnist", None, KEY)


def test_unpacked_files_serve_as_well(tmp_path):
    images = write_mnist(tmp_path)
    for packed in (tmp_path / "MNIST/raw").iterdir():
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    data = registry.load("mnist", tmp_path, KEY)
    assert np.array_equal(data.x[..., 0].numpy(), images)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: write_idx(p, np.zeros((3, 28, 28), np.uint8), cut=5), "needs 2368 bytes.*2363"),
        (lambda p: write_idx(p, np.zeros(3, np.uint8)), "expected 3 dimensions, found 1"),
        (lambda p: p.write_bytes(p.read_bytes()[:40]), "damaged"),
        (lambda p: p.write_bytes(b"not gzip"), "damaged"),
        (lambda p: p.write_bytes(gzip.compress(b"PK\3\4")), "starts 00 00"),
        (lambda p: p.write_bytes(b""), "train-images"),
        (lambda p: write_idx(p, np.zeros((2, 28, 28), np.uint8)), "x has 2 examples, y has 3"),
    ],
)
def test_a_damaged_idx_file_is_a_data_error(tmp_path, damage, message):
    write_mnist(tmp_path)
    damage(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz")
    with pytest.raises(DataError, match=message):
        registry.load("mnist", tmp_path, KEY)


def test_writers_of_other_digits_are_refused(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "QMNIST/raw/qmnist-train-labels-idx2-int.gz"
    path.parent.mkdir(parents=True)
    rows = np.zeros((3, 8), ">i4")
    header = bytes([0, 0, 0x0C, 2]) + np.array(rows.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + rows.tobytes()))
    with pytest.raises(DataError, match="do not belong together"):
        registry.load("qmnist_writers", tmp_path, KEY)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("delicious", "delicious/delicious-train.arff.gz", b"@attribute a {0,1}\n@data\n{0 1\n"),
        ("delicious", "delicious/delicious-train.arff.gz", b"\n@attribute a\n@data\n{7 1}\n"),
        ("delicious", "delicious/delicious-train.arff.gz", b"\n@attribute a\n@data\n{0 x}\n"),
        ("rcv1_small", "rcv1_small/train.svm.gz", b"+1 1:0.5 oops\n"),
        ("cifar100", "cifar-100-binary/train.bin", b"\0" * 3075),
    ],
)
def test_other_damaged_files_are_data_errors(tmp_path, name, file, content):
    source = next(s for s in registry.FILE_SOURCES if registry.options.name_of(s) == name)
    for path in (tmp_path / f for f in source.layouts[0]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    with pytest.raises(DataError, match=f"{file}: damaged"):
        registry.load(name, tmp_path, KEY)


def test_a_damaged_mosaic_is_a_data_error(tmp_path):
    folder = tmp_path / "CIFAR100_subset"
    folder.mkdir()
    np.savez(folder / "labels.npz", train_labels=np.zeros(1, np.uint8))
    for name in ("train.webp", "test.webp"):
        (folder / name).write_bytes(b"RIFF0000WEBP")
    with pytest.raises(DataError, match=r"webp: damaged"):
        registry.load("cifar100_subset", tmp_path, KEY)
    with pytest.raises(DataError, match="cifar100_subset is available"):
        registry.load("cifar100", tmp_path, KEY)


def test_binary_cifar_reads_planes_and_fine_labels(tmp_path):
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    planes = np.arange(3 * 32 * 32).astype(np.uint8)
    for part in ("train", "test"):
        record = bytes([7, 42]) + planes.tobytes()  # coarse, fine, red, green, blue
        (tmp_path / f"cifar-100-binary/{part}.bin").write_bytes(record * 2)
    for part in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        path = tmp_path / f"cifar-10-batches-bin/{part}.bin"
        path.write_bytes(bytes([len(part) % 10]) + planes.tobytes())
    fine = registry.load("cifar100", tmp_path, KEY)
    assert fine.y.tolist() == [42, 42]
    assert fine.x[0, 1, 2].tolist() == planes.reshape(3, 32, 32)[:, 1, 2].tolist()
    ten = registry.load("cifar10", tmp_path, KEY)
    assert ten.y.tolist() == [len("data_batch_1") % 10] * 5
    assert ten.y_test.tolist() == [len("test_batch") % 10]


def test_mosaics_and_binary_cifar10_agree(loaded, tmp_path):
    data = loaded("cifar10")
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    parts = [(data.x[i : i + 20], data.y[i : i + 20]) for i in range(0, 100, 20)]
    parts.append((data.x_test[:20], data.y_test[:20]))
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, (x, y) in zip(names, parts, strict=True):
        planes = x.permute(0, 3, 1, 2).flatten(1)
        records = torch.cat([y[:, None].to(torch.uint8), planes], 1)
        (folder / f"{name}.bin").write_bytes(records.numpy().tobytes())
    again = registry.load("cifar10", tmp_path, KEY)
    assert again.x.equal(data.x[:100])
    assert again.y_test.equal(data.y_test[:20])


def test_unknown_names_are_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'fashion_mnist'"):
        registry.load("fashionmnist", tmp_path, KEY)


def test_a_function_of_ones_own_is_called(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(
        "import torch\n"
        "from fedsieve.data.dataset import Dataset\n"
        "def make():\n"
        "    x, y = torch.ones(2, 3), torch.tensor([0, 1])\n"
        "    return Dataset('mine', x, y, x, y, 'classes', 2, 'rows')\n"
        "def broken():\n"
        "    return 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.load("python:own_data:make", None, KEY).name == "mine"
    with pytest.raises(DataError, match="returned int"):
        registry.load("python:own_data:broken", None, KEY)
    for spec in ("python:own_data:absent", "python:no_such_module:f", "python:own_data"):
        with pytest.raises(ConfigError, match="python:"):
            registry.load(spec, None, KEY)


def test_rcv1_takes_the_most_frequent_topics_of_scikit_learns_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    stories = {"train": 6, "test": 4}
    topics = {s: (rng.random((n, 103)) < 0.1).astype(np.uint8) for s, n in stories.items()}
    topics["train"][:, [7, 50]] = 1  # the most frequent two

    def fetch(*, data_home, subset, download_if_missing):
        assert data_home == tmp_path
        assert not download_if_missing
        data = sparse.csr_matrix(np.full((stories[subset], 47236), 0.5, np.float64))
        return Bunch(data=data, target=sparse.csr_matrix(topics[subset]))

    monkeypatch.setattr("fedsieve.data.sources.texts.fetch_rcv1", fetch)
    (tmp_path / "RCV1").mkdir()
    for part in ("samples", "sample_topics", "sample_id", "topics_names"):
        (tmp_path / "RCV1" / f"{part}_py3.pkl").touch()
    data = registry.load("rcv1(rows=5, test_rows=3, labels=2)", tmp_path, KEY)
    assert data.x.shape == (5, 47236)
    assert data.y.tolist() == [[1, 1]] * 5
    assert data.y_test.tolist() == topics["test"][:3, [7, 50]].tolist()


def test_an_old_name_is_read_as_the_new_one_with_a_word(tmp_path, caplog):
    with pytest.raises(DataError, match="tiny_shakespeare: missing tinyshakespeare/input"):
        registry.load("shakespeare(window=40)", tmp_path, KEY)
    assert "'shakespeare' is called tiny_shakespeare now" in caplog.text
