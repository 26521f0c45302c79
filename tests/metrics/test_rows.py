"""A metric is declared once: every reader follows the table, and earlier files are read."""

import importlib.util
import json
import shutil
from pathlib import Path

import msgspec
import pytest

import fedsieve
from fedsieve.cli.watch import picture
from fedsieve.jobs import trackers
from fedsieve.jobs.library import read_run
from fedsieve.metrics.rows import (
    COLUMNS,
    MEASURED,
    SCORES,
    SUMMARY,
    Measured,
    Metric,
    Row,
    Summary,
    last,
    read_row,
    read_summary,
    totals,
)
from fedsieve.recipes.recipe import METRICS
from fedsieve.report.figures import read_runs
from fedsieve.report.sections import summary as summary_table
from fedsieve.report.watch import Seen

ROOT = Path(__file__).parents[2]
OLD_ROW = b"""{"round":3,"seconds":0.5,"clients":2,"failed":1,"up_bytes":10,"down_bytes":20,
"up_paper_bytes":30,"down_paper_bytes":40,"flops_dense":7,"flops_ideal":5,"flops_realisable":6,
"density":0.5,"values":{"train_loss":0.25},"global_accuracy":0.75,"loss":1,"lost":[4]}"""
OLD_RESULT = b"""{"method":"fedavg","dataset":"digits","model":"linear","partition":"iid",
"partition_fingerprint":"p","seed":0,"num_clients":3,"rounds":3,"seconds":1.5,
"stopped":"after round 3 of 9","score":"accuracy","global_accuracy":0.75,"local_accuracy":null,
"loss":1.0,"best_global_accuracy":0.8,"best_local_accuracy":null,"density":0.5,"up_bytes":10,
"down_bytes":20,"up_paper_bytes":30,"down_paper_bytes":40,"flops_dense":7,"flops_ideal":5,
"flops_realisable":6,"failed":1,"model_hash":"h","versions":{"fedsieve":"0.0.1"}}"""


def row(number, **fields):
    zeros = dict.fromkeys((n for n, m in MEASURED.items() if m.total == "sum"), 0)
    return Row(round=number, clients=2, **zeros | fields)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "a"
    fedsieve.run(rounds=2, clients=3, model="mlp(hidden=[4])", out=folder, progress=False)
    return folder


def test_every_field_is_declared():
    derived = {name for name in MEASURED if name not in Measured.__struct_fields__}
    assert derived == {"sent_bytes", "paper_bytes"}
    assert set(COLUMNS) == set(Row.__struct_fields__) | derived
    assert set(SUMMARY) == set(Summary.__struct_fields__) - {"versions"} | derived


def test_every_declaration_is_whole():
    assert all(metric.label for metric in (COLUMNS | SUMMARY).values())
    assert len({metric.label for metric in SUMMARY.values()}) == len(SUMMARY)
    for name in Row.__struct_fields__:
        assert COLUMNS[name].about, name
    for name in Measured.__struct_fields__:
        assert MEASURED[name].total, name


def test_scores_are_the_metrics_whose_best_value_is_kept():
    assert SCORES == ("global_accuracy", "local_accuracy")
    bests = [n for n in Summary.__struct_fields__ if n.startswith("best_")]
    assert bests == [f"best_{name}" for name in SCORES]


def test_totals_are_sums_last_and_best_values():
    rows = [
        row(1, up_bytes=3, global_accuracy=0.9, density=0.8, values={"a": 1.0}),
        row(2, up_bytes=4, global_accuracy=0.7, density=0.6, values={"a": 2.0}),
        row(3, up_bytes=5, density=0.4),
    ]
    found = totals(rows)
    assert (found["up_bytes"], found["density"], found["values"]) == (12, 0.4, {})
    assert (found["global_accuracy"], found["best_global_accuracy"]) == (0.7, 0.9)
    assert "loss" not in found
    assert set(found) <= set(Summary.__struct_fields__)
    assert totals([])["up_bytes"] == 0
    assert last(rows, "round") == 3


def test_a_metric_that_is_declared_reaches_every_reader(run, monkeypatch):
    """`clients` of a row stands for a new metric: only the table is told of it."""
    new = Metric("replies used", "how many", "clients", "sum", "higher", is_watched=True)
    monkeypatch.setitem(MEASURED, "clients", new)
    monkeypatch.setitem(COLUMNS, "clients", new)
    monkeypatch.setitem(SUMMARY, "num_clients", new)
    record = read_run(run)
    used = sum(one.clients for one in record.rows)
    assert totals(record.rows)["clients"] == used > 0
    assert trackers.totals(record.rows)["clients"] == used
    assert "replies used" in picture(Seen({}, record.rows, None, ""), run, 100)
    table, _ = summary_table(read_runs([run]))
    assert "replies used" in [row[0] for row in table.rows]
    assert "| `clients` | clients | sum | how many |" in columns().table()


def test_recipes_can_expect_every_figure_of_a_result():
    numeric = {name for name, metric in SUMMARY.items() if metric.unit}
    assert numeric >= set(Measured.__struct_fields__) - {"values"}
    assert numeric <= set(METRICS)


def test_the_table_in_the_documentation_is_that_of_the_declarations():
    tool = columns()
    page = tool.PAGE.read_text()
    assert tool.table() in page
    assert tool.rewritten(page) == page, "write it anew: python tools/columns.py"


def columns():
    spec = importlib.util.spec_from_file_location("columns", ROOT / "tools/columns.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_of_an_earlier_version_is_read():
    found = read_row(OLD_ROW)
    assert (found.macs_dense, found.macs_ideal, found.macs_realisable) == (7, 5, 6)
    assert (found.sent_bytes, found.paper_bytes, found.lost, found.loss) == (30, 70, [4], 1.0)
    assert read_row(msgspec.json.encode(found)) == found
    with pytest.raises(msgspec.ValidationError, match="macs_ideal"):
        read_row(OLD_ROW.replace(b"flops_ideal", b"flops_other"))


def test_a_result_of_an_earlier_version_is_read():
    found = read_summary(OLD_RESULT)
    assert (found.status, found.macs_dense, found.macs_ideal) == ("after round 3 of 9", 7, 5)
    assert (found.main_score, found.is_local, found.best_global_accuracy) == (0.75, False, 0.8)
    assert read_summary(msgspec.json.encode(found)) == found


def test_a_run_folder_of_an_earlier_version_is_read(run, tmp_path):
    old = shutil.copytree(run, tmp_path / "old")
    for path in old.rglob("manifest"):
        path.unlink()
    for name in ("rounds.jsonl", "result.json"):
        text = (old / name).read_text().replace("macs_", "flops_").replace("status", "stopped")
        (old / name).write_text(text)
    assert "flops_ideal" in (old / "rounds.jsonl").read_text()
    assert json.loads((old / "result.json").read_text())["stopped"] == "finished"
    assert read_run(old).rows == read_run(run).rows
    assert read_run(old).summary == read_run(run).summary
