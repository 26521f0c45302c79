"""`fedsieve compare`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fedsieve.report.budget import Figure
    from fedsieve.report.compare import Comparison, Reached

UNITS = {"bytes": 1e6, "paper_bytes": 1e6}
TITLES = {
    "bytes": "MB", "paper_bytes": "paper MB", "flops_ideal": "ideal MACs",
    "flops_dense": "dense MACs", "rounds": "rounds",
}  # fmt: skip


def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    reach: Annotated[
        float | None,
        typer.Option(
            help="Score to reach; else 95 % of the best of the worst run.", min=-10, max=1
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare even if data or partitions differ.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for figures (SVG and PNG); needs matplotlib.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="All figures as one JSON line.")] = False,
) -> None:
    """Compare runs at equal communication, equal FLOPs and equal rounds.

    A score at a budget is the last one measured at or before it; budgets are the largest that all
    runs reach, its half and its quarter. Seeds of one configuration are put together as mean +-
    standard deviation. `trials` is how many settings `fedsieve tune` tried for the method.

    ```
    fedsieve compare runs/avg-0 runs/avg-1 runs/sparse-0 runs/sparse-1 --out figures
    fedsieve compare runs/library/* --reach 0.85 --json
    ```
    """
    from fedsieve.library import read_run
    from fedsieve.report.compare import compare, group
    from fedsieve.report.curves import draw

    records = [read_run(path) for path in runs]
    found = compare(records, reach, anyway=anyway)
    paths = [] if out is None else draw(group(records)[0], found.score, out)
    if json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    _print(found)
    for path in paths:
        typer.echo(str(path))


def console() -> Console:
    """Standard output; where it is no terminal, lines are as long as they need to be."""
    found = Console()
    return found if found.is_terminal else Console(width=max(found.width, 200))


def narrow(*columns: str) -> Table:
    """A table without lines whose cells stay in one piece."""
    table = Table(box=None)
    for column in columns:
        table.add_column(plain(column), no_wrap=True)
    return table


def score(value: Figure | None) -> str:
    """A share with four digits, and its spread over seeds."""
    if value is None:
        return "-"
    return f"{value.mean:.4f}" + (f"±{value.spread:.4f}" if value.spread else "")


def number(value: Figure | None, unit: float = 1.0) -> str:
    """A quantity with four digits, and its spread over seeds where it would show in them."""
    if value is None:
        return "-"
    spread = value.spread or 0
    shown = f"±{spread / unit:.2g}" if spread > 1e-3 * abs(value.mean) else ""
    return f"{value.mean / unit:.4g}{shown}"


def plain(text: str) -> str:
    """Text that is shown as it is: brackets are not markup."""
    return text.replace("[", r"\[")


def _print(found: Comparison) -> None:
    from fedsieve.report.budget import AXES

    page = console()
    table = narrow(f"final {found.score}", "n", "trials", "global", "local", "density")
    for line in found.lines:
        table.add_row(
            plain(line.label) + (" *" if line.label in found.pareto else ""),
            str(len(line.seeds)),
            "-" if line.trials is None else str(line.trials),
            *map(score, (line.global_accuracy, line.local_accuracy, line.density)),
        )
    page.print(table)
    which = found.pareto_metric.split("_", maxsplit=1)[0]
    typer.echo(f" * no other sends as little and has as good a {which} score")
    table = narrow("in all", *TITLES.values())
    for line in found.lines:
        table.add_row(plain(line.label), *_spent(line.spent))
    page.print()
    page.print(table)
    for axis in AXES:
        _budgets(page, found, axis)
    for reached in found.reached:
        _reached(page, found, reached)
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _budgets(page: Console, found: Comparison, axis: str) -> None:
    from fedsieve.report.budget import METRICS

    cells = [cell for cell in found.budgets if cell.axis == axis]
    if not cells:
        return
    unit, title = UNITS.get(axis, 1.0), TITLES[axis]
    budgets = dict.fromkeys(cell.budget for cell in cells)
    table = narrow(f"equal {title}", "score", *(f"at {b / unit:.4g}" for b in budgets))
    for line in found.lines:
        for metric in METRICS:
            values = [c.values[line.label] for c in cells if c.metric == metric]
            if any(values):
                which = metric.split("_", maxsplit=1)[0]
                table.add_row(plain(line.label), which, *map(score, values))
    page.print()
    page.print(table)


def _reached(page: Console, found: Comparison, reached: Reached) -> None:
    which = reached.metric.split("_", maxsplit=1)[0]
    table = narrow(f"to reach {which} {reached.target:.4f}", "reached", *TITLES.values())
    for line in found.lines:
        spent = reached.spent[line.label]
        count = next((f.n for f in spent.values() if f is not None), 0)
        table.add_row(plain(line.label), f"{count}/{len(line.seeds)}", *_spent(spent))
    page.print()
    page.print(table)


def _spent(figures: dict[str, Figure | None]) -> list[str]:
    return [number(figures[axis], UNITS.get(axis, 1)) for axis in TITLES]
