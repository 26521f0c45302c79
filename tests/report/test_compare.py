"""Runs are compared at equal budgets, by rows written by hand."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from fedsieve.cli.compare import compare_runs
from fedsieve.core.errors import ConfigError
from fedsieve.drawing import text
from fedsieve.jobs.config import make, to_toml
from fedsieve.jobs.library import Record, read_run
from fedsieve.metrics.rows import AXES, Row, Summary, totals
from fedsieve.report import budget
from fedsieve.report.answer import Candidate, answer
from fedsieve.report.budget import figure
from fedsieve.report.compare import compare, group
from fedsieve.report.curves import curve, draw

BYTES = AXES["bytes"]
SVG = "{http://www.w3.org/2000/svg}"


def row(number, accuracy, up=60, down=40, **fields):
    """A round that sends 100 bytes, 50 by the paper, and takes 10 ideal and 20 dense MACs."""
    plain = {
        "round": number, "seconds": 1.0, "clients": 2, "failed": 0, "up_bytes": up,
        "down_bytes": down, "up_paper_bytes": up // 2, "down_paper_bytes": down // 2,
        "macs_dense": 20, "macs_ideal": 10, "macs_realisable": 15, "density": 0.5,
        "global_accuracy": accuracy, "local_accuracy": accuracy and accuracy - 0.1,
    }  # fmt: skip
    return Row(**plain | fields)


def record(rows, path="run", method="fedavg", seed=0, partition="p0", status="finished", **more):
    config = make({"method": method, "seed": seed, "rounds": len(rows)} | more)
    summary = Summary(
        method=method, dataset=config.dataset, model="m", partition="iid", seed=seed,
        partition_fingerprint=partition, num_clients=2, rounds=len(rows), status=status,
        score="accuracy", model_hash="h", versions={}, **totals(rows),
    )  # fmt: skip
    return Record(Path(path), config, summary, rows, [])


def run_of(*accuracies, **more):
    """A run with these accuracies round by round; none: not evaluated."""
    rows = [row(i + 1, accuracy) for i, accuracy in enumerate(accuracies)]
    return record(rows, **more)


def folder(found, path):
    """The record as a run folder on disk."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(found.config))
    (path / "result.json").write_bytes(msgspec.json.encode(found.summary))
    lines = b"\n".join(map(msgspec.json.encode, found.rows))
    (path / "rounds.jsonl").write_bytes(lines)
    (path / "evaluations.jsonl").write_bytes(b"")
    return path


def test_every_axis_adds_up_its_own_fields():
    run = run_of(0.1, 0.2, 0.3)
    sums = {name: budget.spent(run.rows, axis) for name, axis in AXES.items()}
    assert sums == {
        "bytes": [100, 200, 300],
        "paper_bytes": [50, 100, 150],
        "macs_ideal": [10, 20, 30],
        "macs_dense": [20, 40, 60],
        "rounds": [1, 2, 3],
    }


@pytest.mark.parametrize(
    ("spent", "value"),
    [(99, None), (100, 0.1), (199, 0.1), (250, 0.1), (299, 0.1), (300, 0.3), (10**9, 0.3)],
)
def test_the_value_at_a_budget_is_the_last_measured_at_or_before_it(spent, value):
    run = run_of(0.1, None, 0.3)  # round 2 was not evaluated
    assert budget.at(run, BYTES, spent, "global_accuracy") == value


def test_the_last_value_counts_even_if_an_earlier_one_was_better():
    assert budget.at(run_of(0.5, 0.4), BYTES, 200, "global_accuracy") == 0.4


def test_a_score_is_reached_when_it_is_first_measured():
    run = run_of(0.1, 0.6, 0.4, 0.7)
    assert budget.reach(run, BYTES, 0.6, "global_accuracy") == 200
    assert budget.reach(run, BYTES, 0.65, "global_accuracy") == 400
    assert budget.reach(run, BYTES, 0.8, "global_accuracy") is None


def test_the_common_budget_is_that_of_the_thriftiest_run_that_sends_anything():
    silent = record([row(1, 0.2, up=0, down=0)])
    assert budget.common([run_of(0.1, 0.2, 0.3), run_of(0.1, 0.2), silent], BYTES) == 200
    assert budget.at(silent, BYTES, 200, "global_accuracy") == 0.2
    assert budget.common([silent], BYTES) == 0


def test_totals_within_one_percent_are_one_budget_so_that_no_last_evaluation_is_lost():
    runs = [record([row(1, 0.1, up=up, down=0), row(2, 0.2, up=up, down=0)]) for up in (1000, 1009)]
    whole = budget.common(runs, BYTES)
    assert whole == 2018
    assert [budget.at(r, BYTES, whole, "global_accuracy") for r in runs] == [0.2, 0.2]
    far = record([row(1, 0.1, up=2030, down=0)])
    assert budget.common([*runs, far], BYTES) == 2018


def test_the_default_target_is_95_percent_of_the_worst_runs_best():
    runs = [run_of(0.2, 0.9), run_of(0.8, 0.6)]
    assert budget.default_target(runs, "global_accuracy") == pytest.approx(0.95 * 0.8)


def test_spread_is_the_sample_standard_deviation():
    found = figure([0.1, None, 0.3])
    assert (found.mean, found.n) == (pytest.approx(0.2), 2)
    assert found.spread == pytest.approx(0.02**0.5)  # (0.1^2 + 0.1^2) / (2 - 1)
    assert figure([0.5]).spread is None
    assert figure([None]) is None


def test_seeds_of_one_configuration_are_put_together():
    runs = [
        run_of(0.4, 0.5, seed=0, path="a"),
        run_of(0.6, 0.7, seed=1, path="b", partition="p1", workers=2),  # workers decide nothing
        run_of(0.5, 0.6, seed=0, path="c", lr=0.2),
        run_of(0.5, 0.6, seed=1, path="d", lr=0.2, partition="p1"),
    ]
    found = compare(runs)
    assert [line.seeds for line in found.lines] == [[0, 1], [0, 1]]
    assert "lr=0.2" in found.lines[1].label
    half = next(
        b for b in found.budgets
        if (b.axis, b.share, b.metric) == ("bytes", "1/2", "global_accuracy")
    )  # fmt: skip
    assert half.budget == 100
    first = half.values[found.lines[0].label]
    assert (first.mean, first.n) == (pytest.approx(0.5), 2)


def test_a_run_given_twice_counts_once():
    groups, warnings = group([run_of(0.4, path="a"), run_of(0.4, path="b")])
    assert [len(g.records) for g in groups] == [1]
    assert warnings == ["b: the same run as a, counted once"]


def test_budget_to_reach_counts_the_runs_that_do():
    runs = [run_of(0.4, 0.9, seed=0), run_of(0.4, 0.5, seed=1, partition="p1")]
    reached = compare(runs, 0.8).reached[0]
    assert reached.target == 0.8
    spent = reached.spent["fedavg"]
    assert (spent["bytes"].mean, spent["paper_bytes"].mean, spent["bytes"].n) == (200, 100, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partition": "p9"}, ["partition_fingerprint differs", "one with p0", "two with p9"]),
        ({"dataset": "other"}, ["data set differs", "digits", "other"]),
        ({"score_on": "validation", "validation": 0.1}, ["score_on differs", "validation"]),
    ],
)
def test_runs_on_other_data_are_refused_unless_asked(change, words):
    runs = [run_of(0.5, path="one"), run_of(0.6, path="two", method="fedprox", **change)]
    with pytest.raises(ConfigError) as caught:
        compare(runs)
    assert all(word in str(caught.value) for word in [*words, "--anyway"])
    assert compare(runs, anyway=True).warnings


def test_the_front_holds_what_no_other_beats():
    points = {"a": (1.0, 0.5), "b": (2.0, 0.5), "c": (3.0, 0.9), "d": (4.0, 0.8), "e": (3.0, 0.9)}
    assert budget.non_dominated(points) == ["a", "c", "e"]


def test_trials_are_read_from_the_run_folder_and_unequal_ones_warned_of(tmp_path):
    tuned = folder(run_of(0.5), tmp_path / "x" / "tuned")
    (tuned / "tuning.json").write_text('{"method": "fedavg", "trials": 20, "space": {}}')
    plain = folder(run_of(0.6, method="fedprox"), tmp_path / "y" / "plain")
    found = compare([read_run(tuned), read_run(plain)])
    assert [line.trials for line in found.lines] == [20, None]
    assert "fedavg: 20, fedprox: -" in found.warnings[0]
    (plain.parent / "tuning.json").write_text('{"method": "fedprox", "trials": 20}')
    assert not compare([read_run(tuned), read_run(plain)]).warnings


def test_a_curve_is_the_mean_over_seeds_where_all_were_measured():
    runs = [run_of(0.1, None, 0.3, seed=0), run_of(0.3, None, 0.5, seed=1)]
    means = curve(group(runs)[0][0], BYTES, "global_accuracy")
    assert [m.x for m in means] == [100, 300]
    assert [m.y for m in means] == pytest.approx([0.2, 0.4])
    assert [m.spread for m in means] == pytest.approx([0.02**0.5] * 2)


def drawn(path):
    """Curves of a figure by the number of their group: points as (x, y), and the band if any."""
    root = ET.parse(path).getroot()
    found = {}
    for one in root.findall(f".//{SVG}g[@data-run]"):
        points = [(p.get("data-x"), p.get("data-y")) for p in one.iter(f"{SVG}circle")]
        places = [(round(float(x), 9), round(float(y), 9)) for x, y in points]
        found[int(one.get("data-run"))] = places, one.find(f"{SVG}path[@class='band']")
    return found, [text.text for text in root.iter(f"{SVG}text")]


def test_figures_have_every_group_its_spread_and_the_front(tmp_path):
    seeds = [run_of(0.1, 0.3, seed=0), run_of(0.3, 0.5, seed=1)]
    rows = [row(n, 0.5, up=0, down=0, density=0.25) for n in (1, 2)]
    groups, _ = group([*seeds, record(rows, method="local_only"), run_of(0.2, lr=0.25)])
    paths = draw(groups, "accuracy", tmp_path / "new" / "figures")
    assert [p.name for p in paths] == [
        "accuracy_mb.svg", "accuracy_macs.svg", "density_rounds.svg", "pareto.svg"
    ]  # fmt: skip
    bytes_, macs, density, pareto = map(drawn, paths)
    assert bytes_[0][0][0] == [(1e-4, 0.2), (2e-4, 0.4)]
    assert bytes_[0][1][0] == [(1e-4, 0.5), (2e-4, 0.5)]  # a line across
    assert "local_only (sends nothing)" in bytes_[1]
    assert [curves[1] is not None for curves in bytes_[0].values()] == [True, False, False]
    assert macs[0][1][0] == [(10, 0.5), (20, 0.5)]
    assert density[0][1][0] == [(1, 0.25), (2, 0.25)]
    assert "0" in density[1]
    assert pareto[0][0][0] == [(2e-4, 0.4)]
    assert pareto[0][3][0] == [(0, 0.5)]  # nothing is sent for more than all others reach
    assert "MB sent in all" in pareto[1]


def test_figures_without_a_score_are_pictures_that_say_so(tmp_path):
    groups, _ = group([run_of(None), run_of(None, lr=0.25)])
    by_bytes, _, density, pareto = map(drawn, draw(groups, "accuracy", tmp_path))
    assert by_bytes == ({}, ["local accuracy over MB sent, both ways: nothing to draw"])
    assert pareto[0] == {}
    assert set(density[0]) == {0, 1}


def test_the_command_prints_draws_and_speaks_json(cli, tmp_path):
    one = folder(run_of(0.4, 0.5), tmp_path / "one")
    silent = record([row(1, None, up=0, down=0, local_accuracy=0.4)], method="local_only")
    two = folder(silent, tmp_path / "two")
    code, out, err = cli("compare", one, two, "--out", tmp_path / "figures")
    assert code == 0, err
    assert out.startswith("fedavg is best: 0.500 accuracy with 200 B. The cheapest is local_only")
    assert "not in the picture, as nothing is sent: local_only" in out
    assert "equal MB" not in out
    code, out, err = cli("compare", one, two, "--all")
    assert code == 0, err
    assert "equal MB" in out
    assert "to reach local 0.3800" in out  # 0.95 * 0.4, the best of both
    for name in ("accuracy_mb", "accuracy_macs", "density_rounds", "pareto"):
        assert drawn(tmp_path / "figures" / f"{name}.svg")[0]
    code, out, _ = cli("compare", one, two, "--json")
    found = json.loads(out)
    assert [line["method"] for line in found["lines"]] == ["fedavg", "local_only"]
    assert found["pareto"] == ["local_only", "fedavg"]  # nothing for 0.4, 200 bytes for 0.5
    assert cli("compare", tmp_path / "nothing")[0] == 2


@pytest.mark.parametrize(
    ("candidates", "sentence"),
    [
        ([], "No run has a score yet."),
        ([Candidate("a", 0.5, 2e6)], "a reaches 0.500 accuracy with 2.00 MB."),
        (  # within two points of the best, at a fraction of its bytes
            [Candidate("fedavg", 0.983, 15e6), Candidate("ht", 0.97, 2.25e6)],
            (
                "ht reaches 0.970 accuracy with 2.25 MB, 15 % of fedavg's bytes, 1.3 points below "
                "the best (fedavg 0.983)."
            ),
        ),
        (
            [Candidate("fedavg", 0.983, 15e6), Candidate("s", 0.9, 15e4, is_local=True)],
            (
                "fedavg is best: 0.983 accuracy with 15.00 MB. The cheapest is s: 0.900 local with "
                "150.0 kB, 8.3 points below."
            ),
        ),
        (
            [Candidate("fedavg", 0.983, 15e6), Candidate("s", 0.99, 15e4, is_local=True)],
            "s is best and cheapest: 0.990 local accuracy with 150.0 kB, 1.0 % of fedavg's bytes.",
        ),
        (  # more than two points is not as good
            [Candidate("fedavg", 0.983, 15e6), Candidate("b", 0.99, 30e6), Candidate("c", 0.9, 1)],
            "fedavg reaches 0.983 accuracy with 15.00 MB, 0.7 points below the best (b 0.990).",
        ),
    ],
)
def test_the_answer_names_the_cheapest_run_that_is_as_good_as_the_best(candidates, sentence):
    assert answer(candidates, "fedavg", "accuracy") == sentence


def test_shares_are_of_plain_fedavgs_total():
    runs = [
        record([row(1, 0.5, up=10, down=10)], path="a", wire="int8"),
        record([row(1, 0.5, up=60, down=40)], path="b"),
        record([row(1, 0.9, up=5, down=0)], path="c", method="fedprox"),
    ]
    found = compare(runs)
    assert found.base == found.lines[1].label
    assert [line.share for line in found.lines] == [0.2, 1.0, 0.05]
    assert compare(runs[2:]).base is None  # nothing to be a share of
    other = record([row(1, 0.4, up=5, down=5)], path="d", method="fedmedian")
    assert compare([runs[2], other]).base == "fedprox"  # without FedAvg, the best


def test_a_picture_in_characters_has_every_curve_within_its_width():
    series = [[(0.01, 0.2), (0.1, 0.9)], [(1.0, 0.5)], []]
    lines = ["".join(mark.text for mark in line) for line in text.curves(series, "sent", 40, 8)]
    assert max(map(len, lines)) <= 40
    places = {m: (i, line.index(m)) for m in "aAB" for i, line in enumerate(lines) if m in line}
    assert places["A"][0] == 0 < places["B"][0] < places["a"][0] == 7
    gaps = [places["A"][1] - places["a"][1], places["B"][1] - places["A"][1]]
    assert abs(gaps[0] - gaps[1]) <= 1  # a decade is a decade
    assert text.curves([[], []], "MB") == []


@pytest.mark.parametrize("width", [60, 80])
def test_nothing_wraps_on_a_narrow_terminal(width, tmp_path, capsys, monkeypatch):
    plain = folder(run_of(0.4, 0.5, lr=0.25), tmp_path / "one")
    other = folder(run_of(0.4, 0.6, wire="int8", error_feedback=True), tmp_path / "two")
    slim = Console(width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr("fedsieve.cli.compare.console", lambda: slim)
    compare_runs([plain, other])
    out = capsys.readouterr().out
    picture, table = out[out.index("│") - 4 : out.index(" *")].split("MB sent (log)")
    assert max(map(len, picture.splitlines())) < width
    (last,) = [line for line in out.splitlines() if line.startswith("B")]
    assert last.split()[0] == "B"
    assert "0.6000" in last
    assert "…" not in table


@pytest.mark.parametrize("command", ["compare", "sweep", "tune"])
def test_help_shows_examples(cli, command):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert f"fedsieve {command} " in out
