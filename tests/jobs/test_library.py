"""Runs are made once, found again, and continued when they were cut off."""

import pytest
import safetensors.torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import DataError
from fedsieve.jobs import library
from fedsieve.jobs.api import Watcher
from small import SETTINGS

QUICK = SETTINGS | {"rounds": 2}


def test_a_run_is_made_once_and_then_found(tmp_path, monkeypatch):
    first = library.find_or_run(QUICK, tmp_path)
    monkeypatch.setattr(library.api, "run", lambda **_: pytest.fail("ran again"))
    assert library.find_or_run(QUICK, tmp_path).summary == first.summary
    assert library.find(QUICK | {"seed": 99}, tmp_path) is None


@pytest.mark.parametrize("data", [{}, {"dataset": "synthetic", "partition": "iid"}])
def test_an_interrupted_run_is_continued(tmp_path, data):
    settings = QUICK | data
    whole = fedsieve.run(**settings)

    class Impatient(Watcher):
        def finished_round(self, row):
            raise KeyboardInterrupt

    path = tmp_path / library.run_hash(settings)
    stopped = fedsieve.run(**settings, out=path, watcher=Impatient())
    assert stopped.summary.status == "after round 1 of 2"
    record = library.find_or_run(settings, tmp_path)
    assert record.summary.model_hash == whole.summary.model_hash
    assert [row.round for row in record.rows] == [1, 2]


def test_the_hash_sees_what_decides_results_and_nothing_else():
    base = library.run_hash(QUICK)
    assert library.run_hash(QUICK | {"workers": 2, "checkpoint_every": 3}) == base
    assert library.run_hash(QUICK | {"weighting": "samples"}) == base  # the default, written out
    assert library.run_hash(QUICK | {"lr": "0.1", "optimiser": "sgd"}) == base  # the same, as text
    for change in ({"seed": 8}, {"lr": 0.2}, {"method": "fedprox"}, {"wire": "bf16"}):
        assert library.run_hash(QUICK | change) != base


def test_a_record_holds_rows_and_evaluations(tmp_path):
    record = library.find_or_run(QUICK | {"method": "fediter_ht", "lr": 0.01}, tmp_path)
    assert [e.round for e in record.evaluations] == [1, 2]
    last = record.evaluations[-1]
    mean = sum(last.client_accuracy) / len(last.client_accuracy)
    assert mean == pytest.approx(record.rows[-1].local_accuracy)
    assert set(last.layer_density) == {"fc1.weight", "fc2.weight"}
    sizes = {"fc1.weight": 64 * 12, "fc2.weight": 120}
    kept = sum(last.layer_density[n] * size for n, size in sizes.items())
    assert kept / sum(sizes.values()) == pytest.approx(record.rows[-1].density)


def test_what_is_no_run_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no result.json there"):
        library.read_run(tmp_path)


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedavg", {"personal": True}), ("central", {}), ("flops_pa_central", {}), ("fedmix", {})],
)
def test_a_model_that_is_not_all_of_a_run_is_read_again(method, options, tmp_path):
    result = fedsieve.run(**QUICK | {"method": method, **options}, out=tmp_path)
    assert tree.equal(fedsieve.load(tmp_path).model, result.model)


def test_another_model_than_that_of_pooled_data_is_refused(tmp_path):
    fedsieve.run(**QUICK | {"method": "flops_pa_central"}, out=tmp_path)
    path = tmp_path / "model.safetensors"
    model = safetensors.torch.load_file(path)
    safetensors.torch.save_file({n: t + 1 for n, t in model.items()}, path)
    with pytest.raises(DataError, match=r"model\.safetensors"):
        fedsieve.load(tmp_path)
