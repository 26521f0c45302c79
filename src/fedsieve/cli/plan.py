"""`fedsieve plan`: what a run will cost, before it is run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fedsieve.cli import settings as s
from fedsieve.drawing.units import duration, size

if TYPE_CHECKING:
    from fedsieve.jobs.forecast import Direction, Forecast


@s.with_settings
def plan(
    settings: s.Given,
    json: Annotated[bool, typer.Option("--json", help="The forecast as one JSON line.")] = False,
) -> None:
    """Predict bytes, MACs, memory and time of a run.

    Takes the settings of `fedsieve run` and really plays the first rounds; the others are taken to
    be like the last of them. Where density falls over the run, bytes in all and density are those
    of a run of 20 rounds with one step each.
    """
    from fedsieve.jobs.api import one_thread
    from fedsieve.jobs.config import make
    from fedsieve.jobs.forecast import PROBED, forecast
    from fedsieve.jobs.job import build

    with one_thread():
        asked = make(settings)
        job = build(asked)
        prediction = forecast(asked, job)
    if json:
        typer.echo(msgspec.json.encode(dataclasses.asdict(prediction)).decode())
        return
    typer.echo(
        f"{job.config.method} on {job.config.dataset}, {job.config.model}, "
        f"{job.config.clients} clients, {job.config.cohort} a round, {prediction.rounds} rounds; "
        f"from {min(PROBED, prediction.rounds)} rounds played"
    )
    _print(prediction)
    if prediction.rounds > PROBED:
        typer.echo(
            f"Time and memory are those of the first {PROBED} rounds: after a warm-up they may be "
            "more. Bytes in all follow density as it falls over the run."
        )


def _print(prediction: Forecast) -> None:

    console = Console()
    table = Table("a round", "true", "4 bytes a value", "limit", "true / limit", box=None)
    table.add_row("up", *_cells(prediction.up))
    table.add_row("down", *_cells(prediction.down))
    console.print(table)
    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    paper = size(prediction.total_paper_bytes)
    rows.add_row("in all", f"{size(prediction.total_bytes)}  (4 bytes a value: {paper})")
    rows.add_row("density", f"{prediction.density:.4f}")
    rows.add_row("MACs in all", f"{prediction.total_macs:.3g} dense")
    rows.add_row(
        "time",
        f"{duration(prediction.total_seconds)}  ({prediction.round_seconds:.2f} s a round, "
        f"{prediction.evaluation_seconds:.2f} s an evaluation)",
    )
    rows.add_row("server memory", size(prediction.server_memory_bytes))
    rows.add_row("client memory", f"{size(prediction.client_memory_bytes)} at least, in training")
    rows.add_row("client keeps", f"{size(prediction.client_state_bytes)} between rounds")
    console.print(rows)


def _cells(direction: Direction) -> list[str]:

    ratio = direction.true_bytes / direction.limit_bytes if direction.limit_bytes else 1.0
    figures = (direction.true_bytes, direction.paper_bytes, direction.limit_bytes)
    return [*map(size, figures), f"{ratio:.3f}"]
