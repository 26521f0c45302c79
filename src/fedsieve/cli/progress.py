"""How a run ends on the command line: its result as a table or as JSON."""

from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fedsieve.drawing.units import duration, size
from fedsieve.jobs.progress import Watcher
from fedsieve.metrics.rows import SCORES, Row, Summary, scope


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
    if summary.status != "finished":
        raise typer.Exit(130)


def print_summary(summary: Summary, out: Path | None) -> None:
    """The result as a small table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    fingerprint = f"{summary.partition}  [{summary.partition_fingerprint}]"
    table.add_row("run", f"{summary.method} on {summary.dataset}, {summary.model}")
    table.add_row("clients", f"{summary.num_clients}  {fingerprint}")
    table.add_row("rounds", f"{summary.rounds} ({summary.status}) in {duration(summary.seconds)}")
    for name in SCORES:
        value, top = getattr(summary, name), getattr(summary, f"best_{name}")
        if value is not None:
            label = f"{scope(name)} {summary.score}"
            table.add_row(label, f"{value:.4f}  (best {top:.4f})")
    if summary.seen_accuracy is not None:
        table.add_row("of clients seen", f"{summary.seen_accuracy:.4f}")
    sent = size(summary.sent_bytes)
    ways = f"up {size(summary.up_bytes)}, down {size(summary.down_bytes)}"
    paper = size(summary.paper_bytes)
    table.add_row("sent", f"{sent}  ({ways}; at 4 bytes a value: {paper})")
    layers = summary.layer_mean_density
    also = "" if layers is None else f"  (mean over layers {layers:.4f})"
    table.add_row("density", f"{summary.density:.4f}{also}")
    macs = f"{summary.macs_ideal:.3g} ideal, {summary.macs_realisable:.3g} realisable"
    table.add_row("MACs", f"{summary.macs_dense:.3g} dense, {macs}")
    table.add_row("model", summary.model_hash)
    if out is not None:
        table.add_row("folder", str(out))
    Console(markup=False).print(table)
