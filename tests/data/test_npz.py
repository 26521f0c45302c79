"""A user's own npz file."""

import numpy as np
import pytest
import torch

from fedsieve.core.errors import DataError
from fedsieve.core.keys import Key
from fedsieve.data.sources import registry


def save(path, **arrays):
    plain = {
        "x": np.arange(12, dtype=np.float64).reshape(4, 3),
        "y": np.array([0, 2, 1, 0]),
        "x_test": np.zeros((2, 3)),
        "y_test": np.array([1, 3]),
    }
    np.savez(path, **{k: v for k, v in (plain | arrays).items() if v is not None})
    return f"npz:{path}"


def load(spec):
    return registry.load(spec, None, Key(0))


def test_float_rows_and_whole_targets_are_classes(tmp_path):
    data = load(save(tmp_path / "own.npz", owners=np.array([5, 5, 9, 9])))
    assert (data.name, data.layout, data.kind) == ("own", "rows", "classes")
    assert data.x.dtype == torch.float32
    assert data.num_outputs == 4  # class 3 is in y_test alone
    assert data.owners.tolist() == [5, 5, 9, 9]
    assert data.owners_test is None


def test_float_targets_are_values_and_matrices_are_labels(tmp_path):
    y, y_test = np.array([0.5, 1, 2, 3]), np.array([1.0, 2.0])
    assert load(save(tmp_path / "v.npz", y=y, y_test=y_test)).kind == "values"
    labels = load(
        save(tmp_path / "l.npz", y=np.eye(4, dtype=int), y_test=np.eye(4, dtype=bool)[:2])
    )
    assert (labels.kind, labels.num_outputs) == ("labels", 4)
    assert labels.y.equal(torch.eye(4))


def test_grey_and_colour_bytes_are_standardised_images(tmp_path):
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (4, 6, 5), dtype=np.uint8)
    data = load(save(tmp_path / "g.npz", x=grey, x_test=grey[:2]))
    assert data.input_shape == (1, 6, 5)
    assert data.inputs(data.x).mean().item() == pytest.approx(0, abs=1e-5)
    colour = rng.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    colour[..., 2] = 9  # a flat channel has no deviation to divide by
    data = load(save(tmp_path / "c.npz", x=colour, x_test=colour[:2]))
    assert data.input_shape == (3, 6, 5)
    inputs = data.inputs(data.x)
    assert inputs[:, :2].std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx([1, 1])
    assert inputs[:, 2].abs().max() < 1e-4


def test_float_images_are_taken_as_they_are(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 6, 5, 3))
    data = load(save(tmp_path / "f.npz", x=x, x_test=x[:2]))
    assert data.inputs(data.x).equal(torch.from_numpy(x).float().permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y_test": None}, "no array named y_test; it holds"),
        ({"x": np.zeros((4, 2, 2))}, "it must be rows"),
        ({"x": np.zeros((4, 3), int)}, "it must be rows"),
        ({"x": np.array(["a", "b", "c", "d"])}, "x holds <U1; it must hold numbers"),
        ({"x": np.array([None] * 4)}, "allow_pickle"),
        ({"y_test": np.array([0.5, 1.0])}, "y_test holds float64; it must hold whole numbers"),
        ({"owners": np.ones(4)}, "owners holds float64"),
        ({"y": np.array([0, -1, 1, 0])}, r"y\[1\] is -1"),
        ({"x_test": np.zeros((2, 5))}, "must be alike"),
        ({"y": np.zeros(0, int), "x": np.zeros((0, 3))}, "x is empty"),
    ],
)
def test_files_that_cannot_serve_are_refused(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        load(save(tmp_path / "own.npz", **arrays))


def test_missing_and_damaged_files_are_data_errors(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load(f"npz:{tmp_path / 'absent.npz'}")
    spec = save(tmp_path / "own.npz")
    whole = (tmp_path / "own.npz").read_bytes()
    for content in (b"", b"hello", whole[:-40], whole[:100]):
        (tmp_path / "own.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"own\.npz: damaged"):
            load(spec)
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"own\.npz: damaged"):
        load(spec)
