"""What follows a run: a live bar on a terminal or in a notebook, or plain lines."""

import importlib
import sys
import time
from typing import Any, Self

import rich.live
import typer
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from fedsieve.drawing.units import duration, size
from fedsieve.jobs.settings import Config
from fedsieve.metrics.rows import Row

REDRAW_SECONDS = 0.2  # between pictures in a notebook


class Watcher:
    """Follows a run; this one shows nothing."""

    def started(self, config: Config, done: list[Row]) -> None:
        """The run begins after the rows already `done`."""

    def replied(self, count: int, of: int) -> None:
        """`count` clients of the cohort have answered."""

    def finished_round(self, row: Row) -> None:
        """A round is complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_: object) -> None:
        """Leave the screen as it was."""


class _Shown(Watcher):
    """Counts what all views show."""

    def __init__(self) -> None:
        self.total, self.done = 0, 0
        self.up_bytes, self.down_bytes = 0, 0
        self._started, self._at_start = 0.0, 0
        self._scores: dict[str, float] = {}  # the newest ones

    def started(self, config: Config, done: list[Row]) -> None:
        self.total, self.done, self._at_start = config.rounds, len(done), len(done)
        self.up_bytes = sum(row.up_bytes for row in done)
        self.down_bytes = sum(row.down_bytes for row in done)
        self._started = time.monotonic()

    def finished_round(self, row: Row) -> None:
        self.done = row.round
        self.up_bytes += row.up_bytes
        self.down_bytes += row.down_bytes

    @property
    def seconds_left(self) -> float:
        elapsed = time.monotonic() - self._started
        return elapsed / max(self.done - self._at_start, 1) * (self.total - self.done)

    def text(self, row: Row) -> str:
        self._scores |= row.scores
        parts = [f"{name} {value:.4f}" for name, value in self._scores.items()]
        parts.append(f"up {size(self.up_bytes)} down {size(self.down_bytes)}")
        parts.append(f"density {row.density:.3f}")
        if row.failed:
            parts.append(f"failed {row.failed}")
        return "  ".join(parts)


class Lines(_Shown):
    """One plain line per evaluated round, for logs and pipes."""

    def started(self, config: Config, done: list[Row]) -> None:
        super().started(config, done)
        typer.echo(
            f"{config.method} on {config.dataset}, {config.model}, {config.clients} clients "
            f"({config.partition}), {config.cohort} a round, rounds {len(done) + 1}-{config.rounds}"
        )

    def finished_round(self, row: Row) -> None:
        super().finished_round(row)
        if row.loss is not None:
            left = f"{duration(self.seconds_left)} left"
            typer.echo(f"round {row.round}/{self.total}  {self.text(row)}  {left}")


class Live(_Shown):
    """A progress bar that follows rounds and, within a round, clients; figures below it."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}")
        )
        self._task = self._bar.add_task("starting", total=1, left="")
        self._figures = Text("", no_wrap=True)
        self._live = rich.live.Live(
            Group(self._bar, self._figures), console=Console(stderr=True), refresh_per_second=8
        )

    @property
    def is_terminal(self) -> bool:
        return self._live.console.is_terminal

    def started(self, config: Config, done: list[Row]) -> None:
        super().started(config, done)
        self._bar.update(self._task, total=config.rounds, completed=len(done))

    def replied(self, count: int, of: int) -> None:
        self._bar.update(
            self._task,
            description=f"round {self.done + 1}/{self.total}",
            completed=self.done + count / of,
        )

    def finished_round(self, row: Row) -> None:
        super().finished_round(row)
        self._figures.plain = self.text(row)
        self._bar.update(
            self._task, completed=row.round, left=f"{duration(self.seconds_left)} left"
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exit_: object) -> None:
        self._live.stop()


class Notebook(_Shown):
    """A bar that is redrawn in the output of a notebook's cell."""

    def __init__(self) -> None:
        super().__init__()
        self._figures, self._within, self._drawn = "", 0.0, 0.0
        self._handle: Any = None

    def replied(self, count: int, of: int) -> None:
        self._within = count / of
        self._draw()

    def finished_round(self, row: Row) -> None:
        super().finished_round(row)
        self._figures, self._within = self.text(row), 0.0
        self._draw(is_last=self.done == self.total)

    def __repr__(self) -> str:
        return f"round {self.done}/{self.total}  {self._figures}"

    def _repr_html_(self) -> str:
        left = "" if self.done == self.total else f", {duration(self.seconds_left)} left"
        return (
            f'<progress max="{self.total}" value="{self.done + self._within:.2f}"></progress> '
            f"round {self.done}/{self.total}{left}<br><small>{self._figures}</small>"
        )

    def _draw(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(self, display_id=True)
        elif is_last or now - self._drawn > REDRAW_SECONDS:
            self._handle.update(self)
        else:
            return
        self._drawn = now


def shown() -> Watcher:
    """The view that fits where standard error goes."""
    live = Live()
    return live if live.is_terminal else Lines()


def view(*, is_wanted: bool | None) -> Watcher:
    """The watcher of a call from Python; in logs and pipes only if progress was asked for."""
    if is_wanted is False:
        return Watcher()
    if _is_notebook():
        return Notebook()
    watcher = shown()
    return Watcher() if is_wanted is None and isinstance(watcher, Lines) else watcher


def _is_notebook() -> bool:
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
