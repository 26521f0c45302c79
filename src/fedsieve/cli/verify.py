"""`fedsieve verify`: what of a run folder is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from fedsieve.engine.verify import Verdict

_STYLE = {"whole": "green", "damaged": "red", "unproved": "yellow"}


def verify_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="List whole files, too.")] = False,
) -> None:
    """Check every file of a run against what was written, and say what it can go on from.

    Ends with 0 if all is proved whole, with 2 if anything is damaged, missing or cannot be proved,
    as in folders of older versions. Nothing is changed.

    ```
    fedsieve verify runs/first
    ```
    """
    from fedsieve.engine.verify import verify

    verdict = verify(run)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(verdict), indent=2).decode())
    else:
        _show(verdict, show_all=show_all)
    raise typer.Exit(0 if verdict.is_whole else 2)


def _show(verdict: Verdict, *, show_all: bool) -> None:
    console = Console()
    shown = [file for file in verdict.files if show_all or file.state != "whole"]
    if shown:
        table = Table(Column("file", overflow="fold"), "bytes", "", "why", box=None)
        for file in shown:
            size = "missing" if file.size is None else f"{file.size:,}"
            state = f"[{_STYLE[file.state]}]{file.state}[/]"
            table.add_row(file.name, size, state, file.why)
        console.print(table)
    for check in verdict.checkpoints:
        typer.echo(f"checkpoint of round {check.round}: {check.state}")
    count = sum(file.state == "whole" for file in verdict.files)
    typer.echo(f"{count} of {len(verdict.files)} files whole; {_outlook(verdict)}")


def _outlook(verdict: Verdict) -> str:
    if verdict.resumes_from is None:
        return "the run cannot go on from here."
    again = f"fedsieve run --resume --out {verdict.run}"
    if verdict.is_whole and verdict.is_finished:
        return "the result is as it was written."
    if not verdict.resumes_from:
        return f"`{again}` starts from the beginning."
    return f"`{again}` goes on after round {verdict.resumes_from}."
