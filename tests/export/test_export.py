"""An exported model is smaller, says what it is, and answers like the run's own."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedsieve
from fedsieve.core.errors import ConfigError, DataError, ModelError
from fedsieve.core.keys import fold
from fedsieve.engine.run_folder import RunFolder
from fedsieve.export import export_run, load, read
from fedsieve.jobs.config import make
from fedsieve.jobs.job import build
from fedsieve.jobs.library import read_run
from fedsieve.methods import spafl
from fedsieve.sparsity.masks import density, nonzero


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    fedsieve.run(
        method="fedsparse", model="conv_small", clients=4, cohort=2, rounds=5, steps=4,
        gate_cost=1e-3, threshold_lr=3e-3, out=folder,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    return folder, export_run(run, folder)


def test_the_module_answers_like_the_model_of_the_run(run, exported):
    folder, _ = exported
    record = read_run(run)
    job = build(record.config)
    whole = load_file(run / "model.safetensors")
    x = job.dataset.inputs(job.dataset.x_test)
    expected = job.method.task.predict(whole, x)
    with torch.no_grad():
        found = load(folder)(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    right = (found.argmax(1) == job.dataset.y_test).float().mean().item()
    assert right == pytest.approx(record.summary.global_accuracy)
    assert density(nonzero(whole, job.method.task.graph.maskable)) < 0.95


def test_its_size_is_smaller_and_is_that_of_the_row(run, exported):
    folder, description = exported
    _, params = read(folder)
    assert description.values == sum(t.numel() for t in params.values()) < description.whole_values
    record = read_run(run)
    assert record.summary.deployed_values == record.rows[-1].deployed_values == description.values
    assert record.rows[-1].deployed_macs == description.macs < description.whole_macs


def test_the_modules_layers_know_their_widths(exported):
    module = load(exported[0])
    x = torch.zeros(2, 1, 8, 8)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            assert tuple(layer.weight.shape) == (layer.out_features, layer.in_features)
        if isinstance(layer, nn.Conv2d):
            assert tuple(layer.weight.shape[:2]) == (layer.out_channels, layer.in_channels)
    assert not module.training
    assert module(x).shape == (2, 10)


def test_the_description_says_where_it_comes_from_and_how_inputs_are_scaled(exported):
    folder, description = exported
    stored = json.loads((folder / "model.json").read_text())
    assert stored["origin"]["method"] == "fedsparse"
    assert stored["architecture"] == "conv_small"
    assert stored["input_shape"] == [1, 8, 8]
    assert description.scale == build(make({})).dataset.scale


def test_a_folder_in_use_an_unfinished_run_and_a_run_without_a_global_model_are_refused(
    run, exported, tmp_path
):
    with pytest.raises(DataError, match="not empty"):
        export_run(run, exported[0])
    with pytest.raises(DataError, match=r"no result\.json"):
        export_run(tmp_path, tmp_path / "model")
    fedsieve.run(
        method="local_only", model="mlp(hidden=[4])", clients=2, rounds=1, out=tmp_path / "own"
    )
    with pytest.raises(DataError, match=r"no global model.*--client 0"):
        export_run(tmp_path / "own", tmp_path / "model")
    with pytest.raises(ConfigError, match="client=2: must be >= 0 and <= 1"):
        export_run(tmp_path / "own", tmp_path / "model", client=2)
    with pytest.raises(ConfigError, match="all clients of fedsparse have one model"):
        export_run(run, tmp_path / "model", client=0)
    fedsieve.run(
        method="fedmix", model="mlp(hidden=[4])", clients=2, rounds=1, out=tmp_path / "mix"
    )
    with pytest.raises(DataError, match="not a single network"):
        export_run(tmp_path / "mix", tmp_path / "model")


def test_a_client_s_own_model_is_cut_and_answers_like_the_masked_one(tmp_path):
    fedsieve.run(
        method="spafl", preset="code", model="mlp(hidden=[20])", clients=4, cohort=2, rounds=6,
        epochs=3, lr=0.1, sparsity_weight=0.1, unmasked=["fc2"], out=tmp_path / "run", seed=3,
    )  # fmt: skip
    record, kept = read_run(tmp_path / "run"), RunFolder(tmp_path / "run")
    job = build(record.config)
    x, y = job.dataset.inputs(job.dataset.x_test), job.dataset.y_test
    cut = []
    for client in range(4):
        description = export_run(tmp_path / "run", tmp_path / str(client), client=client)
        assert description.origin["client"] == str(client)
        cut.append(description.values < description.whole_values)
        state = kept.state(spafl.State, client) or job.method.init_client(client, fold(3, "init"))
        masked = job.method.model(kept.server(spafl.Server), state)
        with torch.no_grad():
            found = load(tmp_path / str(client))(x)
        expected = job.method.task.predict(masked, x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        own = job.partition.test[client]
        right = (found[own].argmax(1) == y[own]).float().mean().item()
        assert right == pytest.approx(record.evaluations[-1].client_accuracy[client])
    assert any(cut)


def test_a_matched_network_is_exported_with_the_widths_it_has(tmp_path):
    result = fedsieve.run(
        method="pfnm", model="mlp(hidden=[12])", clients=3, cohort=3, rounds=1, gamma0=1e9,
        out=tmp_path / "run",
    )  # fmt: skip
    width = int(result.rows[-1].values["atoms_1"])
    assert width > 12
    description = export_run(tmp_path / "run", tmp_path / "model")
    assert description.values == 64 * width + width + 10 * width + 10
    assert description.values == result.rows[-1].deployed_values
    job = build(result.config)
    with torch.no_grad():
        found = load(tmp_path / "model")(job.dataset.inputs(job.dataset.x_test))
    right = (found.argmax(1) == job.dataset.y_test).float().mean().item()
    assert right == pytest.approx(result.summary.global_accuracy)


def test_what_is_no_exported_model_is_refused(exported, tmp_path):
    with pytest.raises(DataError, match="no exported model"):
        load(tmp_path)
    text = (exported[0] / "model.json").read_text()
    (tmp_path / "model.json").write_text(text.replace("conv_small", "lenet5"))
    (tmp_path / "model.safetensors").write_bytes((exported[0] / "model.safetensors").read_bytes())
    with pytest.raises(ModelError):
        load(tmp_path)


def test_the_command_writes_the_folder_and_says_how_small_it_is(cli, run, tmp_path):
    code, out, err = cli("export", run, "-o", tmp_path / "model")
    assert code == 0, err
    description, _ = read(tmp_path / "model")
    assert f"{description.values:,} of {description.whole_values:,}" in out
    code, _, err = cli("export", run, "-o", tmp_path / "model")
    assert code == 2
    assert "not empty" in err
