"""The demo runs systems side by side, survives those that fail, and ends with one table."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedsieve
from fedsieve.cli import demo
from fedsieve.cli.demo import Job, Line, Outcome
from fedsieve.core.keys import fold
from fedsieve.export.size import coded_bytes, download_bytes
from fedsieve.jobs.config import make
from fedsieve.jobs.job import build
from fedsieve.report.watch import Seen
from small import SETTINGS


def test_a_failed_run_does_not_take_the_others_down(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(demo.SYSTEMS, "pfnm", ("PFNM", {"lr": "-1"}))
    words = ("demo", "--only", "fedavg,pfnm", "--rounds", 2, "--out", tmp_path, "--json")
    code, out, err = cli(*words, "--workers", 2)
    assert code == 1
    first, *ends = err.splitlines()
    assert first == f"2 runs, 2 at a time, in {tmp_path / 'demo-1'}"
    assert sorted(line.split()[1] for line in ends) == ["fedavg:", "pfnm:"]
    found = json.loads(out)
    fedavg, pfnm = found["lines"]
    assert pfnm["state"].startswith("failed: ")
    assert "lr" in pfnm["state"]
    assert pfnm["accuracy"] is None
    assert (fedavg["state"], fedavg["is_local"], fedavg["share"]) == ("finished", False, 1)
    assert found["folder"] == str(tmp_path / "demo-1")
    result = json.loads((Path(fedavg["folder"]) / "result.json").read_text())
    assert result["rounds"] == 2
    assert fedavg["accuracy"] == result["global_accuracy"]
    assert fedavg["sent_bytes"] == result["up_bytes"] + result["down_bytes"]
    assert fedavg["model_bytes"] == download_bytes(tmp_path / "demo-1" / "fedavg")
    assert Path(found["report"]).read_text().startswith("<!DOCTYPE html>")


def test_personal_models_stand_with_their_local_score_and_mean_size(tmp_path):
    run = fedsieve.run(**SETTINGS | {"method": "spafl", "rounds": 1}, out=tmp_path / "spafl")
    line = demo._line(Job("spafl", tmp_path / "spafl", {}, {}))
    assert (line.is_local, line.accuracy) == (True, run.summary.local_accuracy)
    assert line.model_bytes == download_bytes(tmp_path / "spafl") > 1000


def test_a_name_that_is_no_part_of_the_demo_is_refused_before_anything_is_made(cli, tmp_path):
    code, _, err = cli("demo", "--only", "fedavgg", "--out", tmp_path / "runs")
    assert code == 2
    assert "Did you mean 'fedavg'?" in err
    assert not (tmp_path / "runs").exists()


def test_folders_are_numbered(tmp_path):
    (tmp_path / "demo-1").mkdir()
    assert [demo._fresh(tmp_path).name for _ in range(2)] == ["demo-2", "demo-3"]


def test_the_table_fits_80_columns_and_says_what_is_local_or_failed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    whole = {"density": 1.0, "model_bytes": 6e4, "seconds": 1.0, "folder": "f", "state": "finished"}
    lines = [
        Line(name="fedavg", about="FedAvg", accuracy=0.963, sent_bytes=37_000_000, share=1.0,
             **whole),
        Line(name="spafl", about="Variational dropout", accuracy=0.95, sent_bytes=370_000,
             share=0.01, is_local=True, **whole),
        Line(name="pfnm", about="PFNM", state="failed: no", folder="f"),
    ]  # fmt: skip
    demo._print(Outcome("An answer.", lines, "runs/demo-1", None))
    out = capsys.readouterr().out
    table = out[: out.index("An answer.")].splitlines()
    assert max(map(len, table)) <= 80
    assert table[4].split()[2:] == ["0.950†", "1.000", "0.37", "1.0", "%", "60.0"]
    assert "PFNM: failed: no" in out


def test_ctrl_c_before_any_run_has_begun_still_ends_in_a_table(monkeypatch, cli, tmp_path):
    class Never(demo.Job):
        def start(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(demo, "Job", Never)
    code, out, _ = cli("demo", "--out", tmp_path)
    assert code == 130
    assert "No run was finished." in out
    assert out.count(": stopped") == 7


def test_help_and_the_module_do_without_torch():
    command = "import sys, fedsieve.cli.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_a_model_weighs_less_where_weights_are_zero():
    job = build(make({"model": "mlp(hidden=[12])", "clients": 2}))
    params = job.method.init_server(fold(0, "init")).weights
    dense = coded_bytes(job.method.task, params)
    values = sum(v.numel() for v in params.values())
    assert 3 * values < dense < 4.2 * values  # floats are coded a little below their 4 bytes
    cut = {n: v.clone() for n, v in params.items()}
    cut["fc1.weight"][:6] = 0  # half of the hidden units: their rows and columns are not sent
    cut["fc1.bias"][:6] = 0
    assert coded_bytes(job.method.task, cut) == pytest.approx(dense / 2, rel=0.1)


def test_ctrl_c_stops_what_runs_and_starts_nothing_more():
    class Fake:
        name, state, told = "a", "waiting", 0

        def start(self):
            self.state = "running"
            signal.raise_signal(signal.SIGINT)

        def stop(self):
            self.told += 1
            self.state = "ended" if self.state == "running" else self.state

        def look(self):
            return Seen({}, [], None, "")

        complaint = kill = lambda _: "stopped"

    jobs = [Fake(), Fake()]
    assert demo._work(jobs, workers=1)
    assert [job.state for job in jobs] == ["ended", "waiting"]
    assert jobs[0].told
