"""The recipes of SpaFL: rows and figures as the paper prints them, totals of MACs by hand."""

from types import SimpleNamespace

import pytest

from fedsieve.jobs.library import find_or_run
from fedsieve.recipes.recipe import METRICS, Recipe, Row, Tier, find
from fedsieve.recipes.runner import Trial, figures_of, lines
from fedsieve.recipes.verdict import AtMost

TINY = {"model": "mlp(hidden=[4])", "clients": 4, "cohort": 2, "rounds": 3, "eval_every": 3}


def figures(name):
    """Row -> metric -> value expected."""
    return {
        row.label: {x.metric: round(x.bound.value, 9) for x in row.expected}
        for row in find(name).rows
        if row.expected
    }


def reached(accuracy, density=None):
    found = {"best_local_accuracy": accuracy, "best_local_density": density}
    return {metric: round(v / 100, 9) for metric, v in found.items() if v is not None}


def gbit(thresholds, receivers):
    return {"paper_gbit": 32 * 500 * thresholds * (10 + receivers) / 1e9}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "spafl_cifar10",
            {
                "SpaFL, paper": reached(73.85, 7.57) | gbit(650 + 768, 100),
                "paper, no importance update": reached(72.92),
                "paper, inverse regulariser": reached(73.62, 5.60),
                "paper, unavailable clients": reached(73.45) | gbit(650 + 768, 10),
            },
        ),
        (
            "spafl_cifar100",
            {
                "SpaFL, paper": reached(38.80, 7.38) | gbit(436, 100),
                "paper, no importance update": reached(38.06),
                "paper, inverse regulariser": reached(38.73, 8.01),
                "paper, unavailable clients": reached(38.65) | gbit(436, 10),
                "paper, alpha of Table 3": reached(38.80, 7.38),
            },
        ),
    ],
)
def test_tables_on_cifar_expect_what_the_paper_prints(name, expected):
    assert figures(name) == expected
    bounds = [x.bound for row in find(name).rows for x in row.expected if "density" in x.metric]
    assert all(isinstance(bound, AtMost) for bound in bounds)


def test_variants_differ_from_the_text_s_preset_in_their_own_setting_alone():
    first, *rest = find("spafl_cifar100").rows
    changes = {
        row.label: {n: v for n, v in row.settings.items() if first.settings.get(n) != v}
        for row in rest
        if row.label.startswith("paper, ")
    }
    assert changes == {
        "paper, no importance update": {"importance": False},
        "paper, inverse regulariser": {  # d/dtau of 1 / (tau + 0.1) at 0 is 100 times exp's
            "regulariser": "inverse",
            "sparsity_weight": pytest.approx(0.01 / 100),
        },
        "paper, unavailable clients": {"receivers": "sampled", "importance_scope": "sampled"},
        "paper, alpha of Table 3": {"sparsity_weight": 0.0003},
    }


def record(rows, num_clients=4):
    named = [
        SimpleNamespace(**{"local_accuracy": None, "local_density": None, "values": {}} | row)
        for row in rows
    ]
    return SimpleNamespace(rows=named, summary=SimpleNamespace(num_clients=num_clients))


def test_the_best_density_is_that_of_the_best_round_not_of_the_last():
    rows = [
        {"local_accuracy": 0.5, "local_density": 0.9},
        {},  # not evaluated
        {"local_accuracy": 0.8, "local_density": 0.4},
        {"local_accuracy": 0.7, "local_density": 0.1},
    ]
    assert METRICS["best_local_density"](record(rows)) == 0.4
    assert METRICS["best_local_density"](record(rows[1:2])) is None


def test_macs_are_summed_over_participations_and_averaged_over_all_clients():
    rows = [
        {"clients": 2, "values": {"macs_code": 10.0, "macs_appendix": 30.0}},
        {"clients": 1, "values": {"macs_code": 4.0, "macs_appendix": 8.0}},  # one was lost
    ]
    assert METRICS["macs_code_per_client"](record(rows)) == (10 + 10 + 4) / 4
    assert METRICS["macs_appendix_per_client"](record(rows)) == (30 + 30 + 8) / 4
    assert METRICS["macs_code_per_client"](record([{"clients": 2}])) is None


def test_without_pruning_the_count_of_the_appendix_is_the_dense_one(tmp_path):
    """Thresholds stay 0, so that rho = 1 and c = 1 + 2 rho = 3."""
    still = {"sparsity_weight": 0.0, "ste": "inverted", "weight_ste": False, "importance": False}
    found = find_or_run({**TINY, **still, "method": "spafl", "preset": "code"}, tmp_path)
    dense = METRICS["macs_per_client"](found)
    assert METRICS["macs_appendix_per_client"](found) == pytest.approx(dense)
    assert METRICS["macs_code_per_client"](found) > dense  # by thresholds and weights


def test_figures_a_method_does_not_have_are_left_out_of_what_is_shown(tmp_path):
    row = Row(label="FedAvg", settings={**TINY, "method": "fedavg"})
    recipe = Recipe(
        name="few",
        title="",
        source="",
        rows=(row,),
        tiers={"smoke": Tier(settings={})},
        shown=("macs_per_client", "macs_code_per_client"),
    )
    trial = Trial(row="FedAvg", figures=figures_of(find_or_run(row.settings, tmp_path)))
    found = lines(recipe, row, "smoke", [trial])
    assert [line.metric for line in found] == ["macs_per_client"]
    assert [x.verdict.kind for x in lines(recipe, row, "smoke", [])] == ["not run", "not run"]
