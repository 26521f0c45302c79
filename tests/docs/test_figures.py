"""Figures in print are those the program gives."""

import importlib
import json
import re
from pathlib import Path

import pytest

import fedsieve

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results/defaults.jsonl"


@pytest.fixture(scope="module", params=["fedavg", "spafl"])
def played(request):
    return request.param, fedsieve.run(method=request.param, eval_every=30)


def printed(name):
    """Accuracy, density and MB of a method in the first table of the README."""
    text = (ROOT / "README.md").read_text()
    label = {"fedavg": "FedAvg", "spafl": "SpaFL"}[name]
    row = re.search(rf"^ {label} +(\d.*)$", text, re.MULTILINE)[1].replace("†", " ").split()
    return [float(word) for word in row[:3]]


def test_the_first_table_is_what_runs_give(played):
    name, result = played
    accuracy, density, mb = printed(name)
    last, summary = result.rows[-1], result.summary
    score = last.local_accuracy if last.global_accuracy is None else last.global_accuracy
    # Another processor rounds otherwise: a few of 355 test images may change sides.
    assert score == pytest.approx(accuracy, abs=0.012)
    assert last.density == pytest.approx(density, abs=0.02)
    assert (summary.up_bytes + summary.down_bytes) / 1e6 == pytest.approx(mb, rel=0.01, abs=0.005)
    if name == "fedavg":  # also the sample run of the documentation
        sample = re.search(r"global accuracy +([\d.]+)", (ROOT / "docs/index.md").read_text())[1]
        assert score == pytest.approx(float(sample), abs=0.012)


def test_stored_defaults_are_what_runs_give(played):
    name, result = played
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    (line,) = (x for x in lines if (x["dataset"], x["method"], x["seed"]) == ("digits", name, 0))
    assert result.rows[-1].local_accuracy == pytest.approx(line["local"], abs=0.012)
    sent = result.summary.up_bytes + result.summary.down_bytes
    assert sent / 1e6 == pytest.approx(line["mb"], rel=0.01)


def test_the_page_of_defaults_is_made_of_the_stored_lines(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks/studies")
    defaults = importlib.import_module("defaults")
    page = (ROOT / "docs/results/defaults.md").read_text()
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert defaults.rewritten(page, lines) == page
    assert len(lines) > len(defaults.TASKS)
