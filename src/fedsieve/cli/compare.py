"""`fedsieve compare`: finished runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsieve.metrics.rows import AXES, SCORES, scope

if TYPE_CHECKING:
    from fedsieve.report.budget import Figure
    from fedsieve.report.compare import Comparison, Group, Reached

NARROWEST = 30  # that a picture can be
COLOURS = ("cyan", "red", "green", "magenta", "yellow", "blue", "white", "bright_red")


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
    out: Annotated[Path | None, typer.Option(help="Folder for figures (SVG).")] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Also equal bytes, MACs and rounds, and costs of a score."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="All figures as one JSON line.")] = False,
) -> None:
    """Compare runs: which is best, at what cost.

    A sentence, a curve and a table. Seeds of one configuration are put together as mean ±
    standard deviation. `--all` adds scores at equal communication, MACs and rounds (the last one
    measured at or before a budget; budgets are the largest that all runs reach, its half and its
    quarter) and what it took to reach a score.

    ```
    fedsieve compare runs/demo-1/*/
    fedsieve compare runs/avg-0 runs/avg-1 runs/sparse-0 runs/sparse-1 --all --out figures
    fedsieve compare runs/library/* --reach 0.85 --json
    ```
    """
    # torch takes seconds: help and wrong options are answered before.
    from fedsieve.jobs.library import read_run
    from fedsieve.report.compare import compare, group
    from fedsieve.report.curves import draw

    records = [read_run(path) for path in runs]
    comparison, groups = compare(records, reach, anyway=anyway), group(records)[0]
    paths = [] if out is None else draw(groups, comparison.score, out)
    if json:
        typer.echo(msgspec.json.encode(comparison).decode())
        return
    page = console()
    _print(page, comparison, groups)
    if all_ or reach is not None:
        _print_all(page, comparison)
    else:
        typer.echo("--all: scores at equal bytes, MACs and rounds, and what a score costs")
    for warning in comparison.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for path in paths:
        typer.echo(str(path))


def console() -> Console:
    """Standard output; where it is no terminal, lines are as long as they need to be."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=max(terminal.width, 200))


def narrow(*columns: str) -> Table:
    """A table without lines whose cells stay in one piece."""
    table = Table(box=None)
    for column in columns:
        table.add_column(plain(column), no_wrap=True)
    return table


def score(value: "Figure | None") -> str:
    return str(value or "-")


def number(value: "Figure | None", unit: float = 1.0) -> str:
    """A quantity with four digits, and its spread over seeds where it would show in them."""
    if value is None:
        return "-"
    spread = value.spread or 0
    shown = f"±{spread / unit:.2g}" if spread > 1e-3 * abs(value.mean) else ""
    return f"{value.mean / unit:.4g}{shown}"


def plain(text: str) -> str:
    """Text that is shown as it is: brackets are not markup."""
    return text.replace("[", r"\[")


def _print(page: Console, comparison: "Comparison", groups: "list[Group]") -> None:
    from fedsieve.drawing import text
    from fedsieve.report.answer import percent
    from fedsieve.report.curves import against_bytes

    page.print(comparison.answer, markup=False, highlight=False)
    series, silent = against_bytes(groups)
    wide = max(min(page.width, 80) - 1, NARROWEST)
    for drawn in text.curves(series, f"{comparison.score} over MB sent (log)", wide):
        page.print(Text.assemble(*((m.text, _colour(m.curve)) for m in drawn)), no_wrap=True)
    with_seeds = any(len(line.seeds) > 1 for line in comparison.lines)
    is_short = len(comparison.base or "") <= 12
    shares = [f"of {comparison.base}" if is_short else "share"] if comparison.base else []
    columns = [comparison.score, "density", "MB", *shares, *(["n"] if with_seeds else [])]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True, min_width=1)
    table.add_column("", overflow="fold", min_width=12)
    for column in columns:
        table.add_column(plain(column), justify="right", no_wrap=True)
    for number_, line in enumerate(comparison.lines):
        label = plain(line.label) + (" *" if line.label in comparison.pareto else "")
        cells = [
            score(line.score) + ("†" if line.is_local else ""),
            score(line.density),
            number(line.spent["bytes"], 1e6),
            *(["-" if line.share is None else percent(line.share)] if shares else []),
            *([str(len(line.seeds))] if with_seeds else []),
        ]
        table.add_row(Text(text.letter(number_), _colour(number_)), label, *cells)
    page.print()
    page.print(table)
    if len(comparison.lines) > 1:
        page.print(" * no other sends as little and scores as well", highlight=False)
    if any(line.is_local for line in comparison.lines):
        page.print(" † no global model: mean over clients of their own models", highlight=False)
    if not is_short:
        page.print(plain(f" share: of the bytes of {comparison.base}"), highlight=False)
    if silent:
        page.print(plain(f" not in the picture, as nothing is sent: {', '.join(silent)}"))


def _colour(curve: int | None) -> str:
    return "dim" if curve is None else COLOURS[curve % len(COLOURS)]


def _print_all(page: Console, comparison: "Comparison") -> None:
    table = narrow(f"final {comparison.score}", "n", "trials", *map(scope, SCORES), "density")
    for line in comparison.lines:
        table.add_row(
            plain(line.label),
            str(len(line.seeds)),
            "-" if line.trials is None else str(line.trials),
            *map(score, (line.global_accuracy, line.local_accuracy, line.density)),
        )
    page.print()
    page.print(table)
    table = narrow("in all", *(axis.title for axis in AXES.values()))
    for line in comparison.lines:
        table.add_row(plain(line.label), *_spent(line.spent))
    page.print()
    page.print(table)
    for axis in AXES:
        _budgets(page, comparison, axis)
    for reached in comparison.reached:
        _reached(page, comparison, reached)


def _budgets(page: Console, comparison: "Comparison", axis: str) -> None:
    cells = [cell for cell in comparison.budgets if cell.axis == axis]
    if not cells:
        return
    title, _, unit = AXES[axis]
    budgets = dict.fromkeys(cell.budget for cell in cells)
    table = narrow(f"equal {title}", "score", *(f"at {b / unit:.4g}" for b in budgets))
    for line in comparison.lines:
        for metric in SCORES:
            values = [c.values[line.label] for c in cells if c.metric == metric]
            if any(values):
                table.add_row(plain(line.label), scope(metric), *map(score, values))
    page.print()
    page.print(table)


def _reached(page: Console, comparison: "Comparison", reached: "Reached") -> None:
    what = f"to reach {scope(reached.metric)} {reached.target:.4f}"
    table = narrow(what, "reached", *(axis.title for axis in AXES.values()))
    for line in comparison.lines:
        spent = reached.spent[line.label]
        count = next((f.n for f in spent.values() if f is not None), 0)
        table.add_row(plain(line.label), f"{count}/{len(line.seeds)}", *_spent(spent))
    page.print()
    page.print(table)


def _spent(figures: "dict[str, Figure | None]") -> list[str]:
    return [number(figures[name], axis.unit) for name, axis in AXES.items()]
