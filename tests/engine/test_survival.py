"""Nothing is lost: kill -9, Ctrl-C, crashes and half-written files, on real processes."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from safetensors.torch import load_file

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ResumeError, RoundError, StorageError
from fedsieve.engine import disk, rounds
from fedsieve.engine.records import Records
from fedsieve.jobs.config import read_toml
from fedsieve.metrics.rows import Row
from small import SETTINGS, steady

ARGUMENTS = [
    f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items() if name != "rounds"
]


def start(folder, *more):
    command = [sys.executable, "-m", "fedsieve", "run", *ARGUMENTS, "--out", str(folder), *more]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def wait_for_rows(folder, count, process):
    rows = folder / "rounds.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if rows.exists() and rows.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    pytest.fail(f"no {count} rows after two minutes")


@pytest.fixture(scope="module", params=["fedopt", "local_only"])
def uninterrupted(request):
    return fedsieve.run(**SETTINGS | {"rounds": 60}, method=request.param)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, workers, tmp_path):
    folder, method = tmp_path / "run", uninterrupted.config.method
    run = start(folder, f"--method={method}", "--rounds=60", "--checkpoint-every=3",
                f"--workers={workers}")  # fmt: skip
    wait_for_rows(folder, 7, run)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not (folder / "result.json").exists()
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round":')  # a line the crash cut off
    resumed = fedsieve.run(out=folder, resume=True)
    assert resumed.summary.model_hash == uninterrupted.summary.model_hash
    assert steady(resumed.rows) == steady(uninterrupted.rows)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 61))


def test_ctrl_c_ends_cleanly_and_the_run_goes_on_later(uninterrupted, tmp_path):
    folder, method = tmp_path / "run", uninterrupted.config.method
    run = start(folder, f"--method={method}", "--rounds=60")
    wait_for_rows(folder, 3, run)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    result = json.loads((folder / "result.json").read_text())
    assert 3 <= result["rounds"] < 60
    assert result["status"] == f"after round {result['rounds']} of 60"
    resumed = fedsieve.run(out=folder, resume=True)
    assert resumed.summary.model_hash == uninterrupted.summary.model_hash


def test_two_processes_do_not_write_into_one_run(tmp_path):
    folder = tmp_path / "run"
    run = start(folder, "--rounds=2000")
    wait_for_rows(folder, 2, run)
    with pytest.raises(ResumeError, match="another process is at work"):
        fedsieve.run(out=folder, resume=True)
    assert run.poll() is None, "the run itself must go on"
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    rounds_played = [row["round"] for row in map(json.loads, (folder / "rounds.jsonl").open())]
    assert rounds_played == list(range(1, len(rounds_played) + 1))
    assert len(fedsieve.run(out=folder, resume=True, rounds=len(rounds_played) + 1).rows) > 2


def test_a_run_that_fails_keeps_what_was_done(tmp_path):
    """Diverging training: every client returns non-finite values at some round."""
    with pytest.raises(RoundError, match="non-finite"):
        fedsieve.run(
            dataset="synthetic(task=values, rows=200, features=50)", clients=4, rounds=200,
            preset="paper", lr=2.0, out=tmp_path / "run",
        )  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["rounds"] == len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert result["status"].startswith("after round")


def test_a_folder_in_use_is_not_written_over(tmp_path):
    fedsieve.run(**SETTINGS | {"rounds": 1}, out=tmp_path / "run")
    with pytest.raises(ResumeError, match="--resume, or choose another --out"):
        fedsieve.run(**SETTINGS | {"rounds": 1}, out=tmp_path / "run")


def test_resuming_with_other_settings_is_refused(tmp_path):
    fedsieve.run(**SETTINGS | {"rounds": 1}, out=tmp_path / "run")
    with pytest.raises(ResumeError, match="other values of seed, lr"):
        fedsieve.run(out=tmp_path / "run", resume=True, seed=8, lr=0.3)


@pytest.mark.parametrize(
    "given",
    [
        {"optimiser": "adam", "lr": "1e-2"},
        {"lr": 1, "cohort": 3},
        {"method": "spafl", "preset": "paper", "steps": 2},
        {"schedule": "cosine(floor=0.1)"},
        {"method": "fediter_ht", "schedule": "linear"},
        {"options": {"lr": 0.05}, "partition": "dirichlet(0.5)", "model": "mlp(hidden=[8])"},
        {"clients": None, "cohort": 500, "min_replies": 500},
    ],
    ids=str,
)
def test_the_same_call_goes_on_where_it_was(given, tmp_path):
    settings = {"rounds": 2, "method": "fedavg", "steps": 1, "clients": 5, **given}
    first = fedsieve.run(**settings, out=tmp_path / "run")
    longer = fedsieve.run(**settings | {"rounds": 3}, out=tmp_path / "run", resume=True)
    assert longer.rows[:2] == first.rows
    assert len(longer.rows) == 3


def test_a_row_that_cannot_be_written_leaves_a_folder_that_resumes_to_the_same_bits(tmp_path):
    settings, folder = SETTINGS | {"checkpoint_every": 1}, tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        real = Records.append

        def fails(self, played):
            if played.row.round == 3:
                raise OSError("No space left on device")
            real(self, played)

        patch.setattr(Records, "append", fails)
        with pytest.raises(OSError, match="No space"):
            fedsieve.run(**settings, out=folder)
    resumed = fedsieve.run(out=folder, resume=True)
    assert resumed.summary.model_hash == fedsieve.run(**settings).summary.model_hash


def test_rows_lost_in_a_power_cut_are_played_again_from_the_checkpoint_before(tmp_path):
    settings, folder = SETTINGS | {"method": "local_only", "checkpoint_every": 2}, tmp_path / "run"
    whole = fedsieve.run(**settings, out=folder)
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:-1]))
    resumed = fedsieve.run(out=folder, resume=True)
    assert resumed.summary.model_hash == whole.summary.model_hash
    assert steady(resumed.rows) == steady(whole.rows)


def test_resume_without_a_folder_is_refused():
    with pytest.raises(ResumeError, match="give --out"):
        fedsieve.run(resume=True)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedavg", "schedule": "constant"},
        {"method": "fediter_ht", "schedule": "constant", "ramp": 0},
    ],
    ids=lambda options: options["method"],
)
def test_a_finished_run_resumes_to_itself_and_can_be_extended(options, tmp_path):
    """To the bits of a run of that length, where nothing is as long as the run."""
    done = fedsieve.run(**SETTINGS | options, out=tmp_path / "run")
    again = fedsieve.run(out=tmp_path / "run", resume=True)
    assert again.summary.model_hash == done.summary.model_hash
    longer = fedsieve.run(out=tmp_path / "run", resume=True, rounds=6)
    whole = fedsieve.run(**SETTINGS | options | {"rounds": 6})
    assert longer.summary.model_hash == whole.summary.model_hash
    assert steady(longer.rows) == steady(whole.rows)


def test_a_schedule_keeps_the_length_of_the_run_it_was_begun_with(tmp_path):
    """Whoever extends a run has the rounds there were, and goes on at the end of the schedule."""
    settings = SETTINGS | {"method": "fediter_ht", "rounds": 3}
    done = fedsieve.run(**settings, out=tmp_path / "run")
    longer = fedsieve.run(out=tmp_path / "run", resume=True, rounds=4)
    assert longer.rows[:3] == done.rows
    assert str(longer.config.options["schedule"]) == str(done.config.options["schedule"])
    assert longer.config.options["schedule"].until == 3
    assert longer.config.options["ramp"] == 2
    assert longer.rows[3].density == done.rows[2].density


def test_a_run_folder_holds_a_configuration_that_runs_again(tmp_path):
    first = fedsieve.run(**SETTINGS, method="fedprox", proximal=0.3, out=tmp_path / "run")
    again = fedsieve.run(**read_toml(tmp_path / "run" / "config.toml"))
    assert again.summary.model_hash == first.summary.model_hash
    assert again.config.options["proximal"] == 0.3


def test_files_of_a_run_agree_with_the_result_object(tmp_path):
    result = fedsieve.run(**SETTINGS, out=tmp_path / "run")
    rows = [
        msgspec.json.decode(line, type=Row)
        for line in (tmp_path / "run" / "rounds.jsonl").read_bytes().splitlines()
    ]
    assert rows == result.rows
    messages = [json.loads(x) for x in (tmp_path / "run" / "messages.jsonl").open()]
    up = sum(m["total_bytes"] for m in messages if m["direction"] == "up")
    assert up == result.summary.up_bytes == sum(row.up_bytes for row in rows)
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["model_hash"] == result.summary.model_hash
    assert tree.digest(load_file(tmp_path / "run" / "model.safetensors")) == stored["model_hash"]


def test_an_end_in_the_middle_of_a_round_leaves_a_folder_that_resumes_to_the_same_bits(tmp_path):
    """States of round 3 are accepted, its evaluation dies: the checkpoint of round 2 stays."""
    settings = SETTINGS | {"method": "local_only", "checkpoint_every": 2}
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        real = rounds.evaluate

        def dies(*arguments):
            if arguments[2].newest == 3:
                raise KeyboardInterrupt
            return real(*arguments)

        patch.setattr(rounds, "evaluate", dies)
        stopped = fedsieve.run(**settings, out=folder)
    assert stopped.summary.status == "after round 2 of 4"
    resumed = fedsieve.run(out=folder, resume=True)
    assert resumed.summary.model_hash == fedsieve.run(**settings).summary.model_hash


@pytest.mark.parametrize("method", ["fedavg", "local_only"])
@pytest.mark.parametrize("writes", [1, 4, 7])
def test_a_full_disk_ends_in_one_sentence_and_the_run_goes_on_with_room(
    method, writes, tmp_path, monkeypatch
):
    settings, folder = SETTINGS | {"method": method, "checkpoint_every": 1}, tmp_path / "run"
    count = itertools.count()

    def full(step, path):
        if step == "write" and next(count) >= writes:
            path.write_bytes(b"the first ")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "before", full)
        with pytest.raises(StorageError, match=r"No space left on device.*--resume"):
            fedsieve.run(**settings, out=folder)
    assert not (folder / "result.json").exists()
    resumed, whole = fedsieve.run(out=folder, resume=True), fedsieve.run(**settings)
    assert resumed.summary.model_hash == whole.summary.model_hash
    assert steady(resumed.rows) == steady(whole.rows)
