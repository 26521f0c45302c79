"""Rows that are measured together: once, kept, and compared on the same networks."""

import numpy as np
import pytest
import torch

from fedsieve.core.errors import ConfigError, DataError
from fedsieve.core.keys import Key
from fedsieve.jobs.progress import Watcher
from fedsieve.matching.layout import layout_of
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.recipes.papers import matching
from fedsieve.recipes.papers.matching import k_means_network, uniform_ensemble, weighted_ensemble
from fedsieve.recipes.recipe import Recipe, Row, Tier, find
from fedsieve.recipes.runner import reproduce
from fedsieve.recipes.verdict import AtLeast, Expected, Within

CELL = {"method": "pfnm", "dataset": "digits", "clients": 3, "model": "mlp(hidden=[4])"}


def counting(calls):
    def measure(settings):
        calls.append(settings["seed"])
        return {"a": {"global_accuracy": 0.5 + settings["seed"]}, "b": {"atoms_1": 7.0}}

    return measure


def study(calls, **cells):
    judged = (Expected("global_accuracy", Within(1.0, 0.01), "by hand"),)
    measure, settings = counting(calls), cells or {"x": CELL}
    rows = tuple(Row(label=name, settings=x, measure=measure) for name, x in settings.items())
    tier = Tier(rows=rows, expected={"x: a": judged})
    return Recipe(name="s", title="", source="", tiers={"smoke": tier})


def test_each_cell_is_tried_once_for_each_seed_and_then_found_again(tmp_path):
    calls = []
    first = reproduce(study(calls), "smoke", tmp_path, seeds=2)
    again = reproduce(study(calls), "smoke", tmp_path, seeds=3)
    assert calls == [0, 1, 2]
    mean, other = first.lines
    assert (mean.row, mean.ours.mean, mean.ours.n) == ("x: a", 1.0, 2)
    assert mean.verdict.kind == "within"
    assert (other.row, other.metric, other.verdict.kind) == ("x: b", "atoms_1", "no figure")
    assert again.lines[0].ours.mean == pytest.approx(1.5)
    assert again.is_off


def test_cells_that_differ_in_any_setting_are_tried_apart(tmp_path):
    calls = []
    reproduce(study(calls, x=CELL, y=CELL | {"epochs": 7}), "smoke", tmp_path)
    assert calls == [0, 0]


def test_an_interrupt_keeps_what_is_done(tmp_path):
    calls = []

    def impatient(label):
        if label == "x, seed 1":
            raise KeyboardInterrupt
        return Watcher()

    outcome = reproduce(study(calls), "smoke", tmp_path, seeds=3, watch=impatient)
    assert outcome.unfinished == ("x, seed 1", "x, seed 2")
    assert outcome.lines[0].ours.n == 1


def test_wrong_settings_and_missing_data_are_said_before_anything_runs(tmp_path):
    calls = []
    with pytest.raises(ConfigError, match="tier of s 'full'"):
        reproduce(study(calls), "full", tmp_path)
    with pytest.raises(ConfigError, match="seeds=0"):
        reproduce(study(calls), "smoke", tmp_path, seeds=0)
    with pytest.raises(ConfigError, match="gama0"):
        reproduce(study(calls, x=CELL | {"gama0": 1}), "smoke", tmp_path)
    absent = study(calls, x=CELL | {"dataset": "mnist"})
    with pytest.raises(DataError, match="train-images"):
        reproduce(absent, "smoke", tmp_path, data_root=tmp_path)
    assert calls == []


def test_a_trial_has_all_baselines_and_matching_beats_averaging_and_local_networks():
    cell = matching.SMOKE_CELL | {"epochs": 30, "gamma0": 50.0, "clients": 4}
    trial = matching.trial(cell | {"seed": 0})
    assert list(trial) == [
        "local mean",
        "FedAvg, shared start",
        "ensemble, uniform",
        "ensemble, by class",
        "PFNM",
        "k-means, PFNM's size",
        *(f"GPI-FNM, eps {eps}" for eps in matching.EPS),
    ]
    score = {row: values["global_accuracy"] for row, values in trial.items()}
    assert score["PFNM"] > score["local mean"] + 0.1
    assert 30 <= trial["PFNM"]["atoms_1"] <= 4 * 30


def _row(recipe, label):
    return next(row for row in recipe.rows_of("full") if row.label == label)


def test_the_paper_s_settings_stand_in_the_full_tiers():
    clients, depth = find("matching_clients"), find("matching_depth")
    assert len(clients.rows_of("full")) == 2 * 2 * 5
    assert len(depth.rows_of("full")) == 2 * 2 * 6
    cell = _row(depth, "CIFAR-10, heterogeneous, 6 layers").settings
    assert cell["model"] == f"mlp(hidden={[100] * 6})"
    assert (cell["lr"], cell["reg"], cell["epochs"], cell["batch_size"]) == (0.001, 1e-5, 10, 32)
    rounds = find("matching_rounds_mnist")
    assert [row.settings["rounds"] for row in rounds.rows] == [15] * 3 + [30] * 3
    assert {row.settings["clients"] for row in rounds.rows} == {15}
    floor = rounds.tiers["smoke"].expected["PFNM, homogeneous"][0]
    assert isinstance(floor.bound, AtLeast)


def test_ensembles_mean_probabilities_plainly_or_by_shares_of_classes():
    first, second = torch.tensor([[0.0, 0.0]]), torch.tensor([[np.log(3.0), 0.0]]).float()
    # probabilities (1/2, 1/2) and (3/4, 1/4)
    torch.testing.assert_close(uniform_ensemble([first, second]), torch.tensor([[0.625, 0.375]]))
    counts = torch.tensor([[1, 4], [3, 0]])  # shares (1/4, 1) and (3/4, 0)
    by_class = weighted_ensemble([first, second], counts)
    torch.testing.assert_close(by_class, torch.tensor([[0.125 + 0.5625, 0.5]]))


def test_k_means_with_as_many_centres_as_neurons_is_the_sum_of_the_networks():
    task = ModelTask(lambda: read_model("mlp(hidden=[3])").build((5,), 4), "classes", (5,))
    networks = [task.init_params(Key(seed)) for seed in range(2)]
    fused = k_means_network(layout_of(task.graph, "test"), networks, 6, Key(0))
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    outputs = [task.predict(net, x) - net["fc2.bias"] for net in networks]
    mean_bias = (networks[0]["fc2.bias"] + networks[1]["fc2.bias"]) / 2
    torch.testing.assert_close(task.predict(fused, x), outputs[0] + outputs[1] + mean_bias)
