"""`fedsieve sweep`: a grid of settings times seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsieve.cli import settings as s
from fedsieve.cli.compare import console, narrow, number, plain, score
from fedsieve.drawing.units import duration
from fedsieve.metrics.rows import SCORES, scope

if TYPE_CHECKING:
    from fedsieve.jobs.sweep import Done, OnDone, Point, Progress

Root = Annotated[Path, typer.Option(help="Library: every run is made once and found again.")]
Jobs = Annotated[int, typer.Option(help="Jobs side by side, one core each.")]


@s.with_settings
def run_sweep(
    settings: s.Given,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="A setting or option and its values; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of every point, from the job's own on.")] = 1,
    workers: Jobs = 1,
    root: Root = Path("runs/library"),
) -> None:
    """Run every combination of settings, for several seeds.

    Commas inside parentheses belong to the value. A run that is in the library is not run again,
    one that was cut off goes on, and one that fails does not stop the others: after Ctrl-C, or
    with a larger grid, give the command again.

    ```
    fedsieve sweep job.toml --grid lr=0.01,0.1 --grid epochs=1,5 --seeds 3 --workers 2
    fedsieve sweep --grid method=fedavg,fedprox --grid "partition=dirichlet(0.5, balanced=True),iid"
    ```

    Exit codes: 0 all finished, 1 some failed, 130 stopped.
    """
    from fedsieve.jobs.sweep import read_grid, sweep

    axes = read_grid(grid or [])
    on_done = teller([*axes, "seed"])
    try:
        points = sweep(settings, axes, root, seeds=seeds, workers=workers, on_done=on_done)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    _table(points)
    jobs = [job for point in points for job in point.jobs]
    if stopped := sum(job.state == "stopped" for job in jobs):
        typer.echo(f"{stopped} of {len(jobs)} not finished; the same command goes on from here")
        raise typer.Exit(130)
    if any(job.record is None for job in jobs):
        raise typer.Exit(1)


def teller(names: Sequence[str]) -> OnDone:
    """One line for every job that ends, with its values of `names`."""

    def tell(done: Done, progress: Progress) -> None:
        values = done.settings | done.settings["options"]
        given = " ".join(f"{n}={values[n]}" for n in names if n in values)
        parts = [f"{progress.ended}/{progress.of}", given]
        if done.record is not None:
            scores = done.record.summary.scores.items()
            parts.append("  ".join(f"{name} {value:.4f}" for name, value in scores))
        parts.append(duration(done.seconds) if done.state == "finished" else done.state)
        if done.error:
            parts.append(done.error)
        if done.state not in {"found", "stopped"}:
            parts.append(f"{duration(progress.seconds_left)} left")
        typer.echo("  ".join(parts))

    return tell


def _table(points: list[Point]) -> None:
    from fedsieve.report.budget import figure

    names = list(points[0].values) if points else []
    table = narrow(*names, *map(scope, SCORES), "MB", "density", "n")
    for point in points:
        records = [job.record for job in point.jobs if job.record is not None]
        ends = [record.summary for record in records]
        table.add_row(
            *map(plain, point.values.values()),
            *(score(figure(getattr(end, name) for end in ends)) for name in SCORES),
            number(figure(end.sent_bytes / 1e6 for end in ends)),
            score(figure(end.density for end in ends)),
            f"{len(records)}/{len(point.jobs)}",
        )
    console().print(table)
    for point in points:
        given = " ".join(f"{n}={v}" for n, v in point.values.items()) or "runs"
        for job in point.jobs:
            if job.record is not None:
                typer.echo(f"{given} seed={job.settings['seed']}: {job.record.path}")
