"""Stored results: a line for each row and seed, below the command that made it."""

import dataclasses
import json

import pytest

from fedsieve.core.errors import DataError
from fedsieve.recipes import results
from fedsieve.recipes.recipe import Recipe, Row, Tier
from fedsieve.recipes.runner import reproduce

TINY = {"dataset": "digits", "model": "mlp(hidden=[8])", "clients": 4, "rounds": 3}
ROWS = (
    Row(label="a", settings=TINY | {"method": "fedavg", "eval_every": 2}),
    Row(label="wild", settings=TINY | {"method": "fedavg", "lr": 1000.0, "clip_norm": None}),
)


def line(row, seed, score):
    return {"row": row, "seed": seed, "figures": {"global_accuracy": score}}


def test_a_line_has_settings_figures_and_evaluated_rounds(tmp_path):
    recipe = Recipe(name="t", title="", source="", rows=ROWS, tiers={"smoke": Tier()})
    outcome = reproduce(recipe, "smoke", tmp_path, seeds=2, only="a", workers=1)
    first, second = (trial.line() for trial in outcome.trials)
    assert (first["row"], first["seed"], second["seed"]) == ("a", 0, 1)
    assert first["settings"] == {"preset": "paper", **ROWS[0].settings}, "nothing of the machine"
    assert [x["round"] for x in first["rounds"]] == [2, 3]
    values = 64 * 8 + 8 + 8 * 10 + 10
    last = first["rounds"][-1]
    assert last["paper_bytes"] == first["figures"]["paper_bytes"] == 3 * 4 * 2 * 4 * values
    assert last["global_accuracy"] == round(first["figures"]["global_accuracy"], 5)
    json.dumps([first, second])


def test_a_row_that_diverged_is_stored_as_stopped(tmp_path):
    wild = dataclasses.replace(
        ROWS[1], settings=ROWS[1].settings | {"optimiser": "sgd(weight_decay=1e9)"}
    )
    recipe = Recipe(name="t", title="", source="", rows=(wild,), tiers={"smoke": Tier()})
    outcome = reproduce(recipe, "smoke", tmp_path)
    (trial,) = outcome.trials
    assert outcome.unfinished == ("wild, seed 0",)
    assert trial.line()["stopped"]
    assert "figures" not in trial.line()


def test_lines_are_added_and_the_same_rows_and_seeds_replaced(tmp_path, monkeypatch):
    path = tmp_path / "x" / "smoke.jsonl"
    monkeypatch.setattr(results, "_commit", lambda: "one")
    results.add(path, "first", [line("a", 0, 0.1), line("a", 1, 0.2)])
    results.add(path, "first", [line("b", 0, 0.3)])
    monkeypatch.setattr(results, "_commit", lambda: "two")
    results.add(path, "first", [line("a", 1, 0.9)])
    read = [json.loads(x) for x in path.read_text().splitlines()]
    assert [x.get("commit", x.get("row")) for x in read] == ["one", "a", "b", "two", "a"]
    assert set(read[0]) == {"command", "commit", "version", "machine"}
    assert set(read[0]["machine"]) == {"cores", "platform", "torch"}
    assert results.read(path) == [line("a", 0, 0.1), line("b", 0, 0.3), line("a", 1, 0.9)]
    results.add(path, "all", [line("a", 0, 1), line("a", 1, 1), line("b", 0, 1)])
    assert len(path.read_text().splitlines()) == 4, "a command of which nothing is left goes"


@pytest.mark.parametrize("text", ["[1]\n", "{", '{"row": "a"}\n'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="not a file of results"):
        results.add(path, "c", [line("a", 0, 1)])
    assert path.read_text() == text
