"""A start from a file."""

import pytest
import torch
from safetensors.torch import save_file

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError, ModelError
from fedsieve.core.keys import fold
from small import SETTINGS, small_job


def initial(**settings):
    return small_job(**settings).method.init_server(fold(7, "init")).weights


def test_variational_dropout_starts_from_the_weights_of_a_file_on_server_and_devices(tmp_path):
    first = fedsieve.run(**SETTINGS | {"rounds": 1}, method="fedavg", out=tmp_path)
    path = str(tmp_path / "model.safetensors")
    keeping = small_job(method="vardrop", preset="paper", init_from=path).method
    averaging = small_job(method="vardrop", init_from=path).method
    key = fold(7, "init")
    server = averaging.init_server(key)
    for start in (server, keeping.init_server(key), keeping.init_client(1, key)):
        assert tree.equal(start.model.posterior.weights, first.model)
    assert tree.equal(averaging.broadcast(server, key).weights, first.model)


def test_a_run_goes_on_from_the_model_of_another(tmp_path):
    first = fedsieve.run(**SETTINGS, method="fedavg", out=tmp_path / "first")
    path = str(tmp_path / "first" / "model.safetensors")
    assert tree.equal(initial(init_from=path), first.model)
    again = fedsieve.run(
        **SETTINGS | {"rounds": 1}, method="fedavg", init_from=path, out=tmp_path / "second"
    )
    assert (
        again.summary.global_accuracy
        > fedsieve.run(**SETTINGS | {"rounds": 1}, method="fedavg").summary.global_accuracy
    )
    resumed = fedsieve.run(out=tmp_path / "second", resume=True, rounds=2)
    assert resumed.config.init_from == path


def test_tensors_that_the_file_lacks_start_from_the_seed(tmp_path):
    weight = torch.full((12, 64), 0.5)
    save_file({"fc1.weight": weight}, tmp_path / "part.safetensors")
    found, usual = initial(init_from=str(tmp_path / "part.safetensors")), initial()
    assert torch.equal(found.pop("fc1.weight"), weight)
    usual.pop("fc1.weight")
    assert tree.equal(found, usual)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [("fc1.weight", (3, 64), r"\(12, 64\)"), ("conv.weight", (2, 2), "no such tensor")],
)
def test_tensors_that_do_not_fit_are_named(name, shape, told, tmp_path):
    save_file({name: torch.zeros(shape)}, tmp_path / "wrong.safetensors")
    with pytest.raises(ModelError, match=f"{name} has shape .*{told}"):
        small_job(init_from=str(tmp_path / "wrong.safetensors"))


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "text").write_text("not tensors")
    for name in ("text", "missing"):
        with pytest.raises(ConfigError, match=r"init_from.*not a readable safetensors file"):
            small_job(init_from=str(tmp_path / name))


def test_methods_whose_clients_draw_their_own_networks_refuse_a_file(tmp_path):
    save_file({"fc1.weight": torch.zeros(12, 64)}, tmp_path / "start.safetensors")
    for method in ("pfnm", "gpi_fnm"):
        with pytest.raises(ConfigError, match=f"clients of {method} draw their own"):
            small_job(method=method, init_from=str(tmp_path / "start.safetensors"))
