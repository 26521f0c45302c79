"""Damaged run folders: every file of a run x kinds of damage x draws x methods.

An interrupted run is resumed, a finished one resumed and read. Each time the end must be that of
the undamaged run, bit for bit, or an error in plain words; a model that is silently another one, or
a raw traceback, is a failure and ends the script with 1.

    python tests/fuzz/damage.py [--draws 50] [--methods fedavg spafl vardrop] [--workers 2]
"""

import argparse
import logging
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import FedsieveError
from fedsieve.engine.verify import verify
from fedsieve.export import export_run
from fedsieve.jobs.library import load
from fedsieve.jobs.progress import Watcher
from fedsieve.jobs.result import Result
from fedsieve.report import page

Outcome: TypeAlias = Literal["same", "error", "WRONG", "RAW"]
OUTCOMES: tuple[Outcome, ...] = ("same", "error", "WRONG", "RAW")
SETTINGS: dict[str, Any] = {
    "dataset": "synthetic(task=classes, rows=400, features=12)",
    "model": "mlp(hidden=[6])",
    "partition": "iid",
    "clients": 4,
    "cohort": 3,
    "rounds": 6,
    "steps": 1,
    "seed": 3,
    "checkpoint_every": 2,
    "save_messages": (2,),
}
FEWER = 10  # draws of one that reads a folder by all commands


class Folders(NamedTuple):
    """A run, whole, as a kill in its fifth round leaves it, and what it must end with."""

    stopped: Path
    finished: Path
    result: Result


class Case(NamedTuple):
    """One damage: a file of a folder, the kind, the draw."""

    folder: Path
    file: str
    kind: str
    draw: int


def make_folders(method: str, root: Path, **settings: Any) -> Folders:
    """Run a small job, and copy its folder while it runs."""
    stopped, finished = root / f"{method}-stopped", root / f"{method}-finished"

    class Copier(Watcher):
        def finished_round(self, row: Any) -> None:
            if row.round == 5:
                shutil.copytree(finished, stopped)

    values = SETTINGS | {"method": method} | settings
    result = fedsieve.run(**values, out=finished, watcher=Copier())
    return Folders(stopped, finished, result)


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def zero(data: bytearray, dice: random.Random) -> None:
    """Zeroes in place of some bytes, of which one at least was none."""
    at = dice.choice([i for i, byte in enumerate(data) if byte])
    start = dice.randint(0, at)
    end = dice.randint(at + 1, len(data))
    data[start:end] = bytes(end - start)


KINDS: dict[str, Callable[[bytearray, random.Random], None] | None] = {
    "flip": flip, "truncate": truncate, "zeroes": zero, "delete": None, "empty": None,
}  # fmt: skip


def cases(folder: Path, draws: int) -> Iterator[Case]:
    """Every file that holds anything x kinds x draws; deletion and emptying have one draw."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size]
    for path in files:
        for kind, change in KINDS.items():
            for draw in range(draws if change else 1):
                yield Case(folder, str(path.relative_to(folder)), kind, draw)


def damaged(case: Case, target: Path) -> None:
    """Copy a folder and damage one of its files."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(case.folder, target)
    path, change = target / case.file, KINDS[case.kind]
    if case.kind == "delete":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    if change is None:
        data.clear()
    else:
        change(data, random.Random(f"{case.file} {case.kind} {case.draw}"))
    path.write_bytes(data)


def outcome(work: Callable[[], bool]) -> tuple[Outcome, str]:
    """Whether `work` gives what it must, and the error if there is one."""
    try:
        return ("same", "") if work() else ("WRONG", "")
    except FedsieveError as error:
        return "error", str(error)
    except BaseException as error:  # noqa: BLE001 - what this script looks for
        return "RAW", f"{type(error).__name__}: {error}"


def is_resumed(folder: Path, expected: Result) -> bool:
    """Whether a folder, resumed, ends as it should, and holds just that."""
    found = fedsieve.run(out=folder, resume=True, watcher=Watcher())
    return _is_same(found, expected) and is_read(folder, expected)


def is_read(folder: Path, expected: Result) -> bool:
    """Whether a finished folder gives the result it was written with."""
    return _is_same(load(folder), expected)


def is_shown(folder: Path, expected: Result) -> bool:
    """The same after all commands that read a folder have read it."""
    verify(folder)
    page.write([folder], folder / "page.html", with_partition=False)
    client = 0 if expected.model is None else None
    target = folder.with_name(folder.name + "-export")
    shutil.rmtree(target, ignore_errors=True)
    export_run(folder, target, client=client)
    return is_read(folder, expected)


def _is_same(found: Result, expected: Result) -> bool:
    rows = [[_steady(row) for row in result.rows] for result in (found, expected)]
    hashes = [result.summary.model_hash for result in (found, expected)]
    models = [result.model or {} for result in (found, expected)]
    return rows[0] == rows[1] and hashes[0] == hashes[1] and tree.equal(*models)


def _steady(row: Any) -> dict[str, Any]:
    return {f: getattr(row, f) for f in row.__struct_fields__ if f != "seconds"}


class Task(NamedTuple):
    """What is done with a damaged folder."""

    name: str
    case: Case
    work: Callable[[Path, Result], bool]


def tasks(folders: Folders, draws: int) -> list[Task]:
    """All damages of a method's folders."""
    few = min(draws, FEWER)
    return [
        *(Task("stopped, resumed", case, is_resumed) for case in cases(folders.stopped, draws)),
        *(Task("finished, resumed", case, is_resumed) for case in cases(folders.finished, few)),
        *(Task("finished, read", case, is_read) for case in cases(folders.finished, draws)),
        *(Task("finished, all commands", case, is_shown) for case in cases(folders.finished, few)),
    ]


def run_tasks(some: list[Task], expected: Result, scratch: Path) -> list[tuple[str, str, Outcome]]:
    """Name, kind and outcome of each task; failures are printed."""
    found = []
    for name, case, work in some:
        damaged(case, scratch)
        got, text = outcome(lambda work=work: work(scratch, expected))  # type: ignore[misc]
        if got in {"WRONG", "RAW"}:
            print(f"{got}: {name}, {case.file}, {case.kind} {case.draw}: {text}", flush=True)
        found.append((name, case.kind, got))
    return found


def _share(arguments: tuple[list[Task], Result, Path]) -> list[tuple[str, str, Outcome]]:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    return run_tasks(*arguments)


def main() -> None:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "spafl", "vardrop"])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="damage-") as root:
        for method in arguments.methods:
            started = time.monotonic()
            folders = make_folders(method, Path(root))
            every = tasks(folders, arguments.draws)
            shares = [
                (every[i :: arguments.workers], folders.result, Path(root) / f"scratch-{i}")
                for i in range(arguments.workers)
            ]
            with multiprocessing.get_context("fork").Pool(arguments.workers) as pool:
                counts = Counter(x for share in pool.map(_share, shares) for x in share)
            for name in dict.fromkeys(task.name for task in every):
                for kind in KINDS:
                    row = {o: counts[name, kind, o] for o in OUTCOMES}
                    failed += row["WRONG"] + row["RAW"]
                    figures = "  ".join(f"{o} {n:5d}" for o, n in row.items())
                    print(f"{method:<10} {name:<24} {kind:<9} {figures}", flush=True)
            seconds = time.monotonic() - started
            print(f"{method}: {len(every)} damaged folders in {seconds:.0f} s", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
