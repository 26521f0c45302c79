"""The power goes, or the disk is full, before any step that writes: nothing is lost for good."""

import dataclasses
import errno
import os
import random
import shutil
from typing import NamedTuple

import pytest
import torch

from fedsieve.core import keys
from fedsieve.core.errors import StorageError
from fedsieve.core.message import Dense
from fedsieve.core.method import Method, Metrics, Task
from fedsieve.engine import disk
from fedsieve.engine.checkpoint import LINES, checkpoints_of
from fedsieve.engine.run_folder import RunFolder
from fedsieve.engine.verify import verify
from fedsieve.jobs import api
from fedsieve.jobs.progress import Watcher
from small import small_job, steady


class CutError(BaseException):
    """The process is gone."""


class Fault:
    """Stands for `disk.before`: the power goes at step `at`, and stays away."""

    def __init__(self, at=None, folder=None):
        self.at, self.steps, self.is_gone = at, [], False
        self.checkpoint, self.synced = 0, {}
        for held in checkpoints_of(folder)[-1:] if folder else []:
            self.checkpoint = held.done
            self.synced = {folder / name: held.checksums()[name].size for name in LINES}

    def __call__(self, step, path):
        if self.is_gone or len(self.steps) == self.at:
            self.is_gone = True
            self.fail(step)
        self.steps.append(step)
        if step == "sync" and path.name in LINES:
            self.synced[path] = path.stat().st_size
        if step == "sync" and path.name == "checkpoints":
            self.checkpoint = max(int(p.name) for p in path.iterdir() if p.name.isdigit())

    def fail(self, step):
        raise CutError

    def tear(self, folder, dice):
        """Of what was added to a file since it was last synced, some is lost or zeroes."""
        for name in LINES:
            path = folder / name
            if path.exists():
                data, safe = path.read_bytes(), self.synced.get(path, 0)
                kept = data[: dice.randint(safe, len(data))]
                path.write_bytes(kept + bytes(dice.choice((0, len(data) - len(kept)))))
        for path in folder.rglob("*.tmp"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[: dice.randint(0, path.stat().st_size)])


class FullDisk(Fault):
    """No room from step `at` on; what is there can be removed."""

    def fail(self, step):
        if step not in {"remove", "sync"}:
            raise OSError(errno.ENOSPC, "No space left on device")


class OneError(Fault):
    """Step `at` alone fails."""

    def fail(self, step):
        self.is_gone = False
        self.steps.append(step)
        raise OSError(errno.EIO, "Input/output error")


class Weights(NamedTuple):
    weights: Dense


class Walked(NamedTuple):
    total: torch.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walk(Method[Weights, Walked, Weights, Weights]):
    """Clients with a memory, and next to no work: the sum of all they drew goes to the server."""

    task: Task

    def init_server(self, key):
        return Weights(self.task.init_params(key))

    def init_client(self, client, key):
        return Walked(torch.zeros(2))

    def broadcast(self, server, key):
        return Weights(server.weights)

    def client_update(self, down, state, data, key):
        total = state.total + keys.normal(key, (2,))
        moved = {name: w + total.sum() for name, w in down.weights.items()}
        return Weights(moved), Walked(total), Metrics(1, {})

    def server_update(self, server, round, key):
        return Weights({n: sum(up.weights[n] for up in round.replies) / 2 for n in server.weights})

    def model(self, server, state):
        return server.weights


@pytest.fixture(scope="module")
def job():
    """With client states, and one checkpoint more than are kept."""
    job = small_job(
        dataset="synthetic(task=classes, rows=60, features=5)", partition="iid",
        model="mlp(hidden=[3])", clients=3, cohort=2, rounds=3, checkpoint_every=1, eval_every=3,
    )  # fmt: skip
    return dataclasses.replace(job, method=Walk(task=job.method.task))


@pytest.fixture(scope="module")
def expected(job):
    return api.play(job, None, resume=False, watcher=Watcher())


def played(job, folder, *, resume, fault=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "before", fault or Fault())
        patch.setattr(os, "fsync", lambda _: None)  # `tear` does what it would prevent
        return api.play(job, RunFolder(folder), resume=resume, watcher=Watcher())


def steps_of(job, folder):
    fault = Fault()
    played(job, folder, resume=False, fault=fault)
    return len(fault.steps)


def check_goes_on(job, folder, expected):
    resumed = played(job, folder, resume=True)
    assert resumed.summary.model_hash == expected.summary.model_hash
    assert steady(resumed.rows) == steady(expected.rows)
    assert verify(folder).is_whole


def test_a_power_cut_before_any_step_loses_nothing_that_a_checkpoint_holds(job, expected, tmp_path):
    total = steps_of(job, tmp_path / "whole")
    assert total > 60
    for at in range(total):
        fault, folder = Fault(at), tmp_path / str(at)
        with pytest.raises(CutError):
            played(job, folder, resume=False, fault=fault)
        fault.tear(folder, random.Random(at))
        if (folder / "config.toml").exists():
            assert verify(folder).resumes_from >= fault.checkpoint, at
        check_goes_on(job, folder, expected)


def test_a_power_cut_while_a_run_is_resumed_loses_nothing(job, expected, tmp_path):
    begun, folder = tmp_path / "begun", tmp_path / "run"
    with pytest.raises(CutError):
        played(job, begun, resume=False, fault=Fault(2 * steps_of(job, tmp_path / "whole") // 3))
    at, is_cut = 0, True
    while is_cut:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        fault, is_cut = Fault(at, folder), False
        try:
            played(job, folder, resume=True, fault=fault)
        except CutError:
            is_cut = True
        fault.tear(folder, random.Random(at))
        assert verify(folder).resumes_from >= fault.checkpoint >= 1, at
        check_goes_on(job, folder, expected)
        at += 3
    assert at > 20


@pytest.mark.parametrize("kind", [FullDisk, OneError])
def test_a_disk_that_fails_at_any_step_is_said_in_words_and_the_run_goes_on(
    kind, job, expected, tmp_path
):
    total = steps_of(job, tmp_path / "whole")
    for at in range(kind is OneError, total, 6):
        folder = tmp_path / f"{kind.__name__}-{at}"
        with pytest.raises(StorageError, match=r"cannot be written \(.*--resume"):
            played(job, folder, resume=False, fault=kind(at))
        check_goes_on(job, folder, expected)


def test_a_folder_that_cannot_be_written_to_is_refused_in_words(job, tmp_path):
    fault = FullDisk(0)
    with pytest.raises(StorageError, match=r"run: cannot be written \(No space left on device\)"):
        played(job, tmp_path / "run", resume=False, fault=fault)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be a run folder"):
        played(job, tmp_path / "file" / "run", resume=False)
