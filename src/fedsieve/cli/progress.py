"""How a run looks while it goes on: a live bar on a terminal, plain lines elsewhere, or JSON."""

import time
from pathlib import Path
from typing import Self

import msgspec
import rich.live
import typer
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fedsieve.api import Watcher
from fedsieve.config import Config
from fedsieve.ledger.rows import Row, Summary


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
        if row.global_accuracy is not None:
            self._scores["global"] = row.global_accuracy
        if row.local_accuracy is not None:
            self._scores["local"] = row.local_accuracy
        parts = [f"{name} {value:.4f}" for name, value in self._scores.items()]
        parts.append(f"up {megabytes(self.up_bytes)} down {megabytes(self.down_bytes)}")
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


def shown() -> Watcher:
    """The view that fits where standard error goes."""
    live = Live()
    return live if live.is_terminal else Lines()


class Rows(Watcher):
    """Every row as a JSON line on standard output."""

    def finished_round(self, row: Row) -> None:
        typer.echo(msgspec.json.encode(row).decode())


def conclude(summary: Summary, out: Path | None, *, as_json: bool) -> None:
    """The last words of a command that ran a job; exit code 130 if it was stopped."""
    if as_json:
        typer.echo(msgspec.json.encode(summary).decode())
    else:
        print_summary(summary, out)
    if summary.stopped != "finished":
        raise typer.Exit(130)


def print_summary(summary: Summary, out: Path | None) -> None:
    """The result as a small table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    fingerprint = f"{summary.partition}  [{summary.partition_fingerprint}]"
    table.add_row("run", f"{summary.method} on {summary.dataset}, {summary.model}")
    table.add_row("clients", f"{summary.num_clients}  {fingerprint}")
    table.add_row("rounds", f"{summary.rounds} ({summary.stopped}) in {duration(summary.seconds)}")
    for name in ("global_accuracy", "local_accuracy"):
        value, top = getattr(summary, name), getattr(summary, f"best_{name}")
        if value is not None:
            label = f"{name.split('_')[0]} {summary.score}"
            table.add_row(label, f"{value:.4f}  (best {top:.4f})")
    if summary.seen_accuracy is not None:
        table.add_row("of clients seen", f"{summary.seen_accuracy:.4f}")
    paper = summary.up_paper_bytes + summary.down_paper_bytes
    sent = f"up {megabytes(summary.up_bytes)}, down {megabytes(summary.down_bytes)}"
    table.add_row("sent", f"{sent}  (4 bytes a value: {megabytes(paper)})")
    layers = summary.layer_mean_density
    also = "" if layers is None else f"  (mean over layers {layers:.4f})"
    table.add_row("density", f"{summary.density:.4f}{also}")
    flops = f"{summary.flops_ideal:.3g} ideal, {summary.flops_realisable:.3g} realisable"
    table.add_row("MACs", f"{summary.flops_dense:.3g} dense, {flops}")
    table.add_row("model", summary.model_hash)
    if out is not None:
        table.add_row("folder", str(out))
    Console(markup=False).print(table)


def megabytes(count: int) -> str:
    if 0 < count < 1e5:
        return f"{count / 1e3:.2f} kB"
    return f"{count / 1e6:.2f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole / 3600:.1f} h"
