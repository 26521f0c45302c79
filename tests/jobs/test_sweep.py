"""Grids are run once, side by side, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsieve.cli.app import main
from fedsieve.core.errors import ConfigError, RoundError
from fedsieve.jobs import api, library, sweep
from fedsieve.jobs.api import Watcher
from fedsieve.jobs.sweep import read_grid, run_all, settle
from small import SETTINGS

QUICK = SETTINGS | {"rounds": 2, "clients": 3}
GRID = {"lr": ["0.05", "0.1"], "epochs": ["1", "2"]}


def test_commas_inside_parentheses_belong_to_the_value():
    found = read_grid(["partition=dirichlet(0.5, balanced=True),iid", "model=mlp(hidden=[8, 4])"])
    assert found == {
        "partition": ["dirichlet(0.5, balanced=True)", "iid"],
        "model": ["mlp(hidden=[8, 4])"],
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["lr"], "KEY=VALUE"),
        (["lr=0.1,"], "empty"),
        (["partition=dirichlet(0.5"], "do not match"),
        (["partition=dirichlet)0.5("], "do not match"),
        (["lr=1", "lr=2"], "given twice"),
    ],
)
def test_a_grid_that_cannot_be_read_is_refused(texts, words):
    with pytest.raises(ConfigError, match=words):
        read_grid(texts)


def test_text_and_number_are_the_same_job():
    spelled = [settle(QUICK | {"lr": value}) for value in (0.1, "0.1", "0.10")]
    assert len({library.run_hash(settings) for settings in spelled}) == 1
    same = settle(QUICK | {"optimiser": "sgd"}), settle(QUICK)
    assert library.run_hash(same[0]) == library.run_hash(same[1])


def test_a_grid_is_run_once_and_then_found(tmp_path):
    heard = []
    points = sweep.sweep(
        QUICK, GRID, tmp_path, seeds=2, workers=2, on_done=lambda done, where: heard.append(where)
    )
    assert [p.values for p in points] == [
        {"lr": lr, "epochs": epochs} for lr in GRID["lr"] for epochs in GRID["epochs"]
    ]
    assert [where.ended for where in heard] == list(range(1, 9))
    for point in points:
        assert [job.state for job in point.jobs] == ["finished", "finished"]
        assert [job.record.config.seed for job in point.jobs] == [7, 8]
        assert {job.record.config.epochs for job in point.jobs} == {int(point.values["epochs"])}
    again = sweep.sweep(QUICK, GRID, tmp_path, seeds=2, workers=2)
    assert {job.state for point in again for job in point.jobs} == {"found"}
    hashes = [j.record.summary.model_hash for p in points for j in p.jobs]
    assert hashes == [j.record.summary.model_hash for p in again for j in p.jobs]
    alone = library.find_or_run(QUICK | {"lr": 0.05, "epochs": 1}, tmp_path / "alone")
    assert hashes[0] == alone.summary.model_hash


def test_a_run_that_was_cut_off_goes_on(tmp_path):
    class Impatient(Watcher):
        def finished_round(self, row):
            raise KeyboardInterrupt

    path = tmp_path / library.run_hash(settle(QUICK))
    api.run(**QUICK, out=path, watcher=Impatient())
    (done,) = run_all([QUICK], tmp_path)
    assert done.state == "finished"
    assert done.record.path == path
    assert [row.round for row in done.record.rows] == [1, 2]
    assert len((path / "rounds.jsonl").read_text().splitlines()) == 2


def test_a_bad_name_is_refused_before_anything_runs(tmp_path):
    for grid in ({"lrr": ["1"]}, {"lr": ["fast"]}, {"seed": ["1", "2"]}):
        with pytest.raises(ConfigError):
            sweep.sweep(QUICK, {"epochs": ["1", "2"]} | grid, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_failed_job_stops_no_other(tmp_path, monkeypatch):
    real = library.find_or_run

    def find_or_run(settings, root, watcher=None):
        match settings["epochs"]:
            case 1:
                raise RoundError("too wild")
            case 2:
                raise RuntimeError("no memory")
            case 3:
                os._exit(1)
        return real(settings, root, watcher)

    monkeypatch.setattr(library, "find_or_run", find_or_run)
    done = run_all([QUICK | {"epochs": e} for e in (1, 2, 3, 4, 4)], tmp_path, workers=2)
    assert [d.state for d in done] == ["diverged", "failed", "failed", "finished", "finished"]
    assert [d.error for d in done[:3]] == [
        "too wild",
        "RuntimeError: no memory",
        "its process died",
    ]
    assert done[3] is done[4]  # equal jobs run once


def test_the_command_shows_a_table_and_the_paths(tmp_path, monkeypatch, capsys):
    plain = [f"--set={name}={value}" for name, value in QUICK.items() if name != "lr"]
    command = ["fedsieve", "sweep", *plain, "--grid", "lr=0.1,0", "--root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1  # lr=0 fails
    out = capsys.readouterr().out
    assert "1/2  lr=0.1 seed=7  global 0." in out
    assert "2/2  lr=0.0 seed=7  failed  lr=0.0: must be > 0." in out
    assert f"lr=0.1 seed=7: {tmp_path}" in out


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopping_leaves_no_process_and_a_run_that_goes_on(tmp_path, number, code):
    plain = [f"--set={name}={value}" for name, value in (QUICK | {"rounds": 9999}).items()]
    arguments = ["sweep", *plain, "--seeds=2", "--workers=2", f"--root={tmp_path}"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedsieve", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until(lambda: len(list(tmp_path.glob("*/rounds.jsonl"))) == 2)
        children = children_of(process.pid)
        assert len(children) == 2
        process.send_signal(number)
        assert process.wait(20) == code
    until(lambda: not any(is_alive(child) for child in children))
    for path in tmp_path.iterdir():
        until((path / "result.json").exists)
        assert library.read_run(path).summary.status.startswith("after round")


def until(is_so):
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def children_of(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
