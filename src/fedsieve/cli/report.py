"""`fedsieve report`: one page about finished runs."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    partition: Annotated[
        bool, typer.Option(help="Load the data again to draw who holds which classes.")
    ] = True,
) -> None:
    """Write one self-contained HTML page about runs: results, curves, bytes, masks, clients.

    It begins with the answer: which run is best at what cost, the score over bytes sent, and one
    table. The rest is a click away.

    ```
    fedsieve report runs/dense runs/sparse -o report.html
    ```
    """
    from fedsieve.report import page

    path = page.write(runs, out, with_partition=partition)
    typer.echo(f"{path}  {path.stat().st_size / 1e6:.2f} MB")
