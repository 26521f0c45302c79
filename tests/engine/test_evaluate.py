"""What an evaluation adds to scores, and what it leaves out of them."""

import json
import math

import pytest
import torch

import fedsieve
from fedsieve.engine.evaluate import Scores, discovery
from fedsieve.engine.metrics import Exchange, round_metrics
from fedsieve.jobs.library import read_run
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.linear import Linear, Mlp

TRUTH = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0], [1.0, 0.0]])  # 3 of 8


def graph(model):
    return ModelTask(lambda: model.build((4,), 2), "classes", (4,)).graph


def test_true_discovery_and_recall_of_a_hand_made_support():
    weight = torch.tensor([[0.3, 0.1, 0.0, 0.0], [0.0, 2.0, 0.2, 0.1]])  # 5, of which 2 are true
    assert discovery({"fc.weight": weight}, graph(Linear()), TRUTH) == (2 / 5, 2 / 3)


def test_an_empty_support_has_discovered_nothing():
    assert discovery({"fc.weight": torch.zeros(2, 4)}, graph(Linear()), TRUTH) == (0, 0)


def test_without_a_truth_or_with_a_deep_model_there_is_nothing_to_compare():
    weight = {"fc.weight": torch.ones(2, 4)}
    assert discovery(weight, graph(Linear()), None) is None
    assert discovery(weight, graph(Mlp((3,))), TRUTH) is None
    assert discovery(weight, graph(Linear()), TRUTH[:3]) is None


def three_shards(kind, y_test):
    """Test shards of three, two and one example."""
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    owners = torch.tensor([0, 0, 0, 1, 1, 2])
    y = y_test.clone()
    return fedsieve.Dataset(
        "mine", x, y, x, y_test, kind, 1 if kind == "values" else 2, "rows",
        owners=owners, owners_test=owners,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "y", "scored"),
    [
        ("values", torch.tensor([0.1, 0.7, 0.4, 0.3, 0.3, 9.0]), [0]),  # equal values, one value
        ("values", torch.tensor([0.1, 0.7, 0.4, 0.3, 0.2, 9.0]), [0, 1]),
    ],
)
def test_a_shard_without_spread_has_no_r2_and_counts_nowhere(kind, y, scored, tmp_path):
    result = fedsieve.run(
        dataset=three_shards(kind, y), model="linear", rounds=2, out=tmp_path / "run", lr=1e-3
    )
    record = read_run(tmp_path / "run")
    shares = record.evaluations[-1].client_accuracy
    assert [i for i, share in enumerate(shares) if share is not None] == scored
    mean = sum(shares[i] for i in scored) / len(scored)
    assert result.summary.local_accuracy == pytest.approx(mean)
    assert record.summary == result.summary
    assert record.rows == result.rows


def test_where_no_shard_has_a_score_there_is_none(tmp_path):
    alike = three_shards("values", torch.full((6,), 0.3))
    result = fedsieve.run(dataset=alike, model="linear", rounds=1, out=tmp_path / "run", lr=1e-3)
    assert (result.summary.local_accuracy, result.summary.global_accuracy) == (None, None)
    assert result.summary.loss > 0
    lines = [x for p in (tmp_path / "run").glob("*.jsonl") for x in p.read_text().splitlines()]
    for text in (*lines, (tmp_path / "run" / "result.json").read_text()):
        json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_figures_of_a_row_are_finite_or_not_there(odd):
    row, _ = round_metrics(
        Exchange([], [], []), Scores(None, None, None), [], {"a": odd, "b": 2.0}, 1, 0
    )
    assert row.values == {"b": 2.0}
