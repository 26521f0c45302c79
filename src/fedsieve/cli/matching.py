"""The part of `fedsieve inspect` that shows how a run matched its clients' neurons."""

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from fedsieve.core.errors import DataError
from fedsieve.drawing.matching import as_svg, as_text
from fedsieve.jobs.inspect import network_accuracies, read_matched
from fedsieve.matching.result import table


def show_matching(folder: Path, svg: Path | None) -> None:
    """The last matching of a run: a table, a picture of each layer, and accuracies."""
    matched = read_matched(folder)
    if matched is None:
        typer.echo("no checkpoint holds a matching yet")
        return
    typer.echo(f"\nmatching after round {matched.rounds}, {len(matched.clients)} clients")
    for line in table(matched.labels, matched.energies):
        typer.echo(line)
    for number, falls in enumerate(matched.falls, 1):
        last = sum(falls[-len(matched.clients) :])
        typer.echo(
            f"layer {number}: {len(falls)} re-matchings lowered the objective by {sum(falls):.2f}, "
            f"the last {len(matched.clients)} of them by {last:.2f}"
        )
    names = [str(client) for client in matched.clients]
    for number, labels in enumerate(matched.labels, 1):
        typer.echo(f"layer {number}: clients by atoms, the most used first")
        for line in as_text(labels, names):
            typer.echo(line)
        if svg is not None:
            svg.mkdir(parents=True, exist_ok=True)
            path = svg / f"layer{number}.svg"
            path.write_text(as_svg(labels, names))
            typer.echo(f"picture: {path}")
    try:
        _accuracies(folder)
    except DataError as error:
        typer.echo(f"accuracies need the run's data: {error}")


def _accuracies(folder: Path) -> None:
    whole, clients = network_accuracies(folder)
    lines = Table("client", "local network", "its part of the global one", box=None)
    for one in clients:
        lines.add_row(str(one.client), f"{one.local_accuracy:.3f}", f"{one.part_accuracy:.3f}")
    if not clients:
        return
    lines.add_row(
        "mean",
        f"{sum(p.local_accuracy for p in clients) / len(clients):.3f}",
        f"{sum(p.part_accuracy for p in clients) / len(clients):.3f}",
    )
    typer.echo(f"accuracy on all test data; the global network has {whole:.3f}")
    Console().print(lines)
