"""`fedsieve partition`: see how data is split before anything is trained."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedsieve.data.partitions.partition import Share

COLOURS = (
    "red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green",
    "bright_yellow", "bright_blue",
)  # fmt: skip
WIDTH = 50


def partition(
    dataset: Annotated[str, typer.Option(help="See `fedsieve datasets`.")] = "digits",
    partition: Annotated[
        str,
        typer.Option(
            help="`iid`, `dirichlet(alpha)`, `dirichlet(alpha, balanced=True)`, `quantity(alpha)`, "
            "`shards(per_client)`, `clusters(k, parts, per_client)`, `natural`, "
            "`feature_shift(sd, base=iid)`."
        ),
    ] = "auto",
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    validation: Annotated[float, typer.Option(help="Share of training data held out.")] = 0.0,
    data_root: Annotated[Path | None, typer.Option(help="Folder of data files.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print and draw every client.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON line per client.")] = False,
) -> None:
    """Split a data set over clients and show sizes, skew and fingerprint.

    The same data set, partition, clients and seed give the same fingerprint in `fedsieve run`.
    """
    from fedsieve.data.partitions.partition import describe
    from fedsieve.jobs.api import one_thread
    from fedsieve.jobs.config import make
    from fedsieve.jobs.job import split_data

    config = make(
        {
            "dataset": dataset,
            "partition": partition,
            "clients": clients,
            "seed": seed,
            "validation": validation,
            "data_root": None if data_root is None else str(data_root),
        }
    )
    with one_thread():
        data, how, parts = split_data(config)
    shares = describe(parts, data)
    if json:
        for share in shares:
            typer.echo(msgspec.json.encode(share._asdict()).decode())
        return
    sizes = sorted(share.train for share in shares)
    console = Console()
    middle = f"{median(sizes):.9g}"
    typer.echo(f"{data.name}: {how} over {len(shares)} clients")
    typer.echo(
        f"training examples {sizes[0]} to {sizes[-1]}, median {middle}, {sum(sizes)} in all; "
        f"classes held by a client {_classes_held(shares)}; fingerprint {parts.fingerprint}"
    )
    if show:
        _draw(console, shares)


def _classes_held(shares: list[Share]) -> str:
    held = sorted(sum(count > 0 for count in share.classes) for share in shares)
    return f"{held[0]} to {held[-1]} of {len(shares[0].classes)}"


def _draw(console: Console, shares: list[Share]) -> None:
    """A bar per client, as long as its share of the largest client, coloured by class."""
    largest = max(share.train for share in shares)
    table = Table("client", "train", "valid.", "test", "classes", box=None)
    for share in shares:
        bar, total = Text(), max(sum(share.classes), 1)
        length = max(round(WIDTH * share.train / largest), 1)
        passed = 0
        for index, count in enumerate(share.classes):
            start, passed = round(length * passed / total), passed + count
            cells = round(length * passed / total) - start
            letter = "0123456789abcdefghijklmnopqrstuvwxyz"[index % 36]
            bar.append(letter * cells, style=COLOURS[index % len(COLOURS)])
        sizes = (share.client, share.train, share.validation, share.test)
        table.add_row(*map(str, sizes), bar)
    console.print(table)
