"""The recipes of FedSparse's table: settings as stated, totals by formula, metrics by hand."""

import pytest

from fedsieve.jobs.library import find_or_run
from fedsieve.recipes.papers import fedsparse
from fedsieve.recipes.recipe import METRICS, Recipe, Row, Tier
from fedsieve.recipes.runner import reproduce


def test_costs_of_gates_and_totals_are_those_of_the_paper():
    settings = {row.label: row.settings for row in fedsparse.cifar10.rows}
    assert [settings[f"FedSparse {c}"]["gate_cost"] for c in ("low", "mid", "high")] == [
        5e-7, 5e-6, 5e-5,
    ]  # fmt: skip
    assert fedsparse.by_formula(1000, 878_538).bound.value == pytest.approx(65.5, abs=0.05)
    expected = {x.metric: x.bound.value for x in fedsparse.cifar10.rows[3].expected}
    assert expected == {
        "late_global_accuracy": pytest.approx(0.7030),
        "late_local_accuracy": pytest.approx(0.8754),
        "paper_gib": 36,
        "sparsity": pytest.approx(0.457),
    }


def test_a_tier_may_set_single_rows_apart_and_says_so():
    recipe = fedsparse.cifar10
    rows = {row.label: row for row in recipe.rows}
    assert recipe.settings(rows["FedSparse mid"], "small")["threshold_lr"] == 1.5e-3
    assert "threshold_lr" not in recipe.settings(rows["FedAvg"], "small")
    assert "threshold_lr 0.0015 in place of the default" in recipe.departure(
        rows["FedSparse mid"], "small"
    )


def test_late_accuracies_are_means_over_the_last_ten_evaluations(tmp_path):
    settings = {"model": "mlp(hidden=[4])", "clients": 3, "rounds": 12, "method": "fedavg"}
    record = find_or_run(settings, tmp_path)
    rows = record.rows[2:]
    for kind in ("global", "local"):
        by_hand = sum(getattr(row, f"{kind}_accuracy") for row in rows) / 10
        assert METRICS[f"late_{kind}_accuracy"](record) == pytest.approx(by_hand)
    assert METRICS["sparsity"](record) == 0
    values = 64 * 4 + 4 + 4 * 10 + 10
    assert METRICS["deployed_values"](record) == values


def test_the_smoke_tier_runs_and_fedavg_sends_what_the_formula_says(tmp_path):
    smoke = fedsparse.cifar10
    few = Recipe(
        name="few",
        title="",
        source="",
        rows=tuple(
            Row(label=row.label, settings=row.settings) for row in (smoke.rows[0], smoke.rows[4])
        ),
        tiers={
            "smoke": Tier(
                settings={**fedsparse.SMOKE, "rounds": 2},
                expected={"FedAvg": (fedsparse.by_formula(2, fedsparse.VALUES),)},
            )
        },
        shown=fedsparse.SHOWN,
    )
    outcome = reproduce(few, "smoke", tmp_path)
    assert not outcome.is_off
    assert {line.verdict.kind for line in outcome.lines} == {"within", "no figure"}
    assert {line.row for line in outcome.lines} == {"FedAvg", "FedSparse high"}
