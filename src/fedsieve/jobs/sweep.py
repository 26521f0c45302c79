"""Many jobs through one library: grids times seeds, side by side in processes.

Each job runs in a process of its own with one torch thread. The parent tells it over a pipe to
stop after its round; a job whose parent is gone stops by itself. Either way the round's checkpoint
is kept, and the next call goes on from there.
"""

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_type_hints

import msgspec

import fedsieve.methods  # noqa: F401 - registers the methods
from fedsieve.core.errors import ConfigError, FedsieveError, RoundError
from fedsieve.core.method import method_class
from fedsieve.core.options import coerce, in_range, spell
from fedsieve.engine.executors.cores import busy
from fedsieve.engine.interrupt import Interrupt
from fedsieve.jobs import library
from fedsieve.jobs.config import SETTINGS, make
from fedsieve.jobs.library import Record
from fedsieve.jobs.progress import Watcher
from fedsieve.jobs.search_space import split_list
from fedsieve.metrics.rows import Row

Settings: TypeAlias = dict[str, Any]
State: TypeAlias = Literal["found", "finished", "diverged", "failed", "stopped"]
LIBRARY = Path("runs/library")
GRACE_SECONDS = 3.0  # for a process that was asked to end at once


class Done(NamedTuple):
    """How a job ended; it has a record if it was found or finished."""

    settings: Settings
    state: State
    seconds: float = 0.0
    record: Record | None = None
    error: str = ""


class Progress(NamedTuple):
    """Progress of a batch of jobs."""

    ended: int
    of: int
    seconds_left: float


class Point(NamedTuple):
    """A point of the grid and its seeds."""

    values: dict[str, Any]
    jobs: list[Done]


OnDone: TypeAlias = Callable[[Done, Progress], None]


def sweep(
    settings: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    root: str | Path = LIBRARY,
    *,
    seeds: int = 1,
    workers: int = 1,
    on_done: OnDone | None = None,
) -> list[Point]:
    """Run the product of a grid for seeds s, s+1, ... of the settings' own seed s.

    Runs are kept in the library at `root`: the same call again finds them, and goes on with what
    was interrupted.

    ```python
    for point in fedsieve.sweep({"rounds": 20}, {"lr": [0.01, 0.1], "wire": ["fp32", "int8"]}):
        scores = [job.record.summary.global_accuracy for job in point.jobs if job.record]
        print(point.values, scores)
    ```

    Args:
        settings: what all runs share, as keywords of `fedsieve.run`.
        grid: values by the name of a setting or option.
        root: the library of runs.
        seeds: how many runs of every point.
        workers: runs side by side, one core each.
        on_done: called for every run that ends.

    Raises:
        ConfigError: a name or value in the settings or the grid does not fit.
    """
    in_range("seeds", seeds, 1)
    if "seed" in grid:
        raise ConfigError("grid: 'seed' is not a point of the grid; give --seeds N.")
    first = make(dict(settings)).seed
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    jobs = [with_values(settings, p) | {"seed": first + k} for p in points for k in range(seeds)]
    ended = run_all(jobs, Path(root), workers=workers, on_done=on_done)
    return [Point(p, ended[i * seeds : (i + 1) * seeds]) for i, p in enumerate(points)]


def read_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """`["lr=0.1,0.2", "partition=dirichlet(0.5, balanced=True),iid"]` as names and their values.

    Raises:
        ConfigError: not of that form, or a name is given twice.
    """
    grid: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--grid {text!r}: write it as KEY=VALUE,VALUE.")
        if name in grid:
            raise ConfigError(f"--grid {text!r}: {name} is given twice; put all its values in one.")
        grid[name] = list(dict.fromkeys(split_list(values, f"--grid {text!r}")))
    return grid


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Settings with some values changed, whether settings or options of the method."""
    options = dict(settings.get("options", {}))
    options |= {n: v for n, v in settings.items() if n not in {*SETTINGS, "options"}}
    options |= {n: v for n, v in values.items() if n not in SETTINGS}
    plain = {n: v for n, v in {**settings, **values}.items() if n in SETTINGS}
    return plain | {"options": options}


def settle(settings: Mapping[str, Any]) -> Settings:
    """Settings with every value read and spelled out: `"0.10"` and 0.1 are the same job.

    Raises:
        ConfigError: an unknown name, or a value of the wrong type.
    """
    config = make(dict(settings))
    hints = get_type_hints(method_class(config.method))
    options = {n: coerce(v, hints[n], f"{config.method}: {n}") for n, v in config.options.items()}
    given = [n for n in settings if n in SETTINGS and settings[n] is not None]
    plain = {n: spell(getattr(config, n)) for n in given}
    return plain | {"options": {n: spell(v) for n, v in options.items()}}


def run_all(
    jobs: Sequence[Mapping[str, Any]],
    root: Path,
    *,
    workers: int = 1,
    on_done: OnDone | None = None,
) -> list[Done]:
    """Obtain all jobs, `workers` at a time; equal ones run once, a failed one stops no other.

    The first Ctrl-C stops every job after its round: those that are not finished are `stopped`.

    Raises:
        ConfigError: a job's settings do not fit; nothing has been run then.
        KeyboardInterrupt: a second Ctrl-C; all processes have ended.
    """
    in_range("workers", workers, 1)
    alone = {"workers": 1} if workers > 1 else {}
    settled = [settle({**job, **alone}) for job in jobs]
    names = [library.run_hash(settings) for settings in settled]
    waiting = dict(zip(names, settled, strict=True))
    workers = busy(workers)
    ended: dict[str, Done] = {}
    started, of, ran = time.monotonic(), len(waiting), 0

    def end(name: str, done: Done) -> None:
        ended[name] = done
        each = (time.monotonic() - started) / max(ran, 1)
        if on_done is not None:
            on_done(done, Progress(len(ended), of, each * (of - len(ended))))

    for name, settings in list(waiting.items()):
        if (record := library.find(settings, root)) is not None:
            end(name, Done(waiting.pop(name), "found", record=record))
    with Interrupt() as interrupt, _Workers(root) as processes:
        while processes.busy or (waiting and not interrupt.is_asked):
            while waiting and processes.busy < workers and not interrupt.is_asked:
                name = next(iter(waiting))
                processes.start(name, waiting.pop(name))
            if interrupt.is_asked:
                processes.stop()
            for name, done in processes.ended(within=0.2):
                ran += 1
                end(name, done)
    rest = {name: Done(settings, "stopped") for name, settings in waiting.items()}
    return [(ended | rest)[name] for name in names]


class _Work(NamedTuple):
    process: multiprocessing.process.BaseProcess
    name: str
    settings: Settings
    since: float


class _Workers:
    """Worker processes of running jobs; leaving the context ends them all."""

    def __init__(self, root: Path) -> None:
        ways = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("fork" if "fork" in ways else "spawn")
        self._root, self._is_stopping = root, False
        self._at_work: dict[Connection, _Work] = {}

    @property
    def busy(self) -> int:
        return len(self._at_work)

    def start(self, name: str, settings: Settings) -> None:
        here, there = self._context.Pipe()
        # Not a daemon: a job may have worker processes of its own.
        process = self._context.Process(
            target=_work, args=(settings, self._root, os.getpid(), there)
        )
        process.start()
        there.close()
        self._at_work[here] = _Work(process, name, settings, time.monotonic())

    def stop(self) -> None:
        """Ask all to stop after their round."""
        if not self._is_stopping:
            self._is_stopping = True
            for connection in self._at_work:
                with contextlib.suppress(OSError):  # it has just ended
                    connection.send_bytes(b"stop")

    def ended(self, within: float) -> Iterator[tuple[str, Done]]:
        """Jobs that ended, waiting at most `within` seconds for the first."""
        for ready in wait(list(self._at_work), within):
            assert isinstance(ready, Connection)  # noqa: S101 - what was given to wait
            try:
                state, error = msgspec.json.decode(ready.recv_bytes(), type=tuple[State, str])
            except (EOFError, OSError):
                state, error = "failed", "its process died"
            work = self._at_work.pop(ready)
            work.process.join()
            ready.close()
            seconds = time.monotonic() - work.since
            record = library.find(work.settings, self._root) if state == "finished" else None
            yield work.name, Done(work.settings, state, seconds, record, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_: object) -> None:
        for work in self._at_work.values():
            work.process.terminate()
        for work in self._at_work.values():
            work.process.join(GRACE_SECONDS)
            work.process.kill()
            work.process.join()


class _Listener(Watcher):
    """Stops the job when the parent says so, or is gone."""

    def __init__(self, parent: int, connection: Connection) -> None:
        self._parent, self._connection = parent, connection

    def replied(self, count: int, of: int) -> None:
        if os.getppid() != self._parent:
            raise KeyboardInterrupt

    def finished_round(self, row: Row) -> None:
        if self._connection.poll():
            signal.raise_signal(signal.SIGINT)


def _work(settings: Settings, root: Path, parent: int, connection: Connection) -> None:
    """Runs a job in a process of its own and sends how it ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("fedsieve").setLevel(logging.ERROR)  # what matters is in the outcome
    state: State = "stopped"
    error = ""
    try:
        record = library.find_or_run(settings, root, _Listener(parent, connection))
        state = "finished" if record.summary.status == "finished" else "stopped"
    except KeyboardInterrupt:
        pass
    except RoundError as problem:
        state, error = "diverged", str(problem)
    except FedsieveError as problem:
        state, error = "failed", str(problem)
    except Exception as problem:  # noqa: BLE001 - one job's failure must not stop the others
        state, error = "failed", f"{type(problem).__name__}: {problem}"
    connection.send_bytes(msgspec.json.encode((state, error)))
