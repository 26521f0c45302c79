"""`fedsieve reproduce`: the papers' tables, run again or recomputed."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from fedsieve.cli import settings as s
from fedsieve.cli.compare import console
from fedsieve.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from fedsieve.jobs.api import Watcher
    from fedsieve.recipes.figure import Calculated
    from fedsieve.recipes.recipe import Expected, Measured, Recipe, Study, TierName
    from fedsieve.recipes.runner import Line, Outcome


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A recipe; without one all are listed.")
    ] = None,
    tier: Annotated[str, typer.Option(help="How large: smoke, small, medium or full.")] = "smoke",
    seeds: Annotated[int, typer.Option(help="Runs of each row, with seeds 0, 1, ...")] = 1,
    root: Annotated[Path, typer.Option(help="Library of runs; finished ones are used again.")] = (
        Path("runs/library")
    ),
    workers: Annotated[int, typer.Option(help="Processes training side by side.")] = 1,
    data_root: s.DataRoot = None,
    json: Annotated[bool, typer.Option("--json", help="The table as one JSON line.")] = False,
) -> None:
    """Run a table of a paper again and compare, or list the tables there are.

    What is finished in the library is not run again; what was interrupted goes on. Only the tier
    `full` is judged against the paper. Exit code 1: a figure is off; 130: not finished.

    ```
    fedsieve reproduce
    fedsieve reproduce communication_totals
    fedsieve reproduce em_fashion_mnist --tier small --seeds 3 --workers 2
    ```
    """
    from fedsieve.cli.progress import shown
    from fedsieve.jobs.api import Watcher
    from fedsieve.recipes.figure import Calculated
    from fedsieve.recipes.recipe import Study, find
    from fedsieve.recipes.runner import reproduce as reproduce_recipe
    from fedsieve.recipes.study import carry_out

    if name is None:
        _list(data_root)
        return
    recipe = find(name)
    if isinstance(recipe, Calculated):
        _print_figures(recipe, as_json=json)
        return
    chosen = _tier(tier)

    def say(label: str) -> None:
        if not json:
            typer.echo(label)

    def watch(label: str) -> Watcher:
        say(label)
        return Watcher() if json else shown()

    if isinstance(recipe, Study):
        outcome = carry_out(recipe, chosen, root, seeds=seeds, data_root=data_root, watch=say)
    else:
        outcome = reproduce_recipe(
            recipe, chosen, root, seeds=seeds, workers=workers, data_root=data_root, watch=watch
        )
    if json:
        typer.echo(msgspec.json.encode(dataclasses.asdict(outcome)).decode())
    else:
        _print_outcome(recipe, outcome)
    if outcome.unfinished:
        raise typer.Exit(130)
    if outcome.is_off:
        raise typer.Exit(1)


def _tier(name: str) -> TierName:
    from fedsieve.recipes.recipe import TIERS

    for tier in TIERS:
        if tier == name:
            return tier
    raise ConfigError(unknown("tier", name, TIERS))


def _list(data_root: Path | None) -> None:
    from fedsieve.cli.progress import duration
    from fedsieve.data.sources.registry import catalogue
    from fedsieve.recipes.estimate import MACS_PER_SECOND, STEP_SECONDS, estimate
    from fedsieve.recipes.figure import Calculated
    from fedsieve.recipes.recipe import Study, registered

    present = {line.name: line.is_present for line in catalogue(data_root)}
    table = Table("recipe", "tier", "rows", "rounds", "one core, roughly", "data", box=None)
    for recipe in registered().values():
        table.add_row(f"[bold]{recipe.name}[/bold]")
        if isinstance(recipe, Calculated):
            table.add_row("", "-", str(recipe.count), "0", "seconds", "none needed")
            continue
        for tier in recipe.tiers:
            needed = ", ".join(
                d if present.get(d.split("(")[0], True) else f"{d} (missing)"
                for d in recipe.datasets(tier)
            )
            if isinstance(recipe, Study):
                cells = len(recipe.tiers[tier].cells)
                table.add_row("", tier, f"{cells} cells", str(cells), "unknown", needed)
                continue
            cost = estimate(recipe, tier)
            time = "unknown" if cost.core_seconds is None else duration(cost.core_seconds)
            table.add_row("", tier, str(cost.rows), str(cost.rounds), time, needed)
    page = console()
    page.print(table)
    for recipe in registered().values():
        page.print(f"{recipe.name}: {recipe.title} ({recipe.source}).", highlight=False)
    page.print(
        f"Rounds and time are for one seed of all rows. Time is a rough guess from "
        f"assumed figures: {MACS_PER_SECOND / 1e9:.0f} GMAC/s per core and "
        f"{STEP_SECONDS * 1e3:g} ms for each mini-batch.",
        highlight=False,
    )


def _print_figures(recipe: Calculated, *, as_json: bool) -> None:
    from fedsieve.recipes import figure

    judged = [(f, figure.judge(f)) for f in recipe.figures()]
    if as_json:
        rows = [dataclasses.asdict(f) | v._asdict() for f, v in judged]
        typer.echo(msgspec.json.encode({"recipe": recipe.name, "figures": rows}).decode())
        return
    table = Table("figure", "formula", "printed", "ours", "unit", "verdict", box=None)
    for f, verdict in judged:
        table.add_row(f.label, f.formula, f.printed or "-", _digits(f.ours), f.unit, verdict.text)
    page = console()
    page.print(f"{recipe.title} ({recipe.source})", highlight=False)
    page.print(table)
    counts = [v.agreement for _, v in judged]
    words = [f"{counts.count(w)} {w}" for w in dict.fromkeys(counts)]
    page.print(f"{len(counts)} figures: {', '.join(words)}", highlight=False)


def _print_outcome(recipe: Recipe | Study, outcome: Outcome) -> None:
    from fedsieve.cli.progress import megabytes

    table = Table("row", "metric", "expected", "ours", "n", "verdict", box=None)
    before = ""
    for line in outcome.lines:
        label = "" if line.row == before else line.row
        n = "-" if line.ours is None else str(line.ours.n)
        table.add_row(
            label, line.metric, _expected(line.expected), _ours(line.ours), n, _verdict(line)
        )
        before = line.row
    costs = Table("row", "true bytes", "4 bytes a value", "MACs", box=None)
    for label, cost in outcome.costs.items():
        sent = (megabytes(round(count)) for count in (cost.true_bytes, cost.paper_bytes))
        costs.add_row(label, *sent, f"{cost.macs_dense:.3g}")
    page = console()
    page.print(
        f"{recipe.title} ({recipe.source}); tier {outcome.tier}; mean +- sample standard "
        "deviation over n seeds",
        highlight=False,
    )
    page.print(table)
    if outcome.costs:
        page.print(costs)
    expected = [line.expected for line in outcome.lines if line.expected is not None]
    sources = dict.fromkeys(f"{x.metric} {_expected(x)}: {x.source}" for x in expected)
    verdicts = [line.verdict for line in outcome.lines]
    reasons = dict.fromkeys(v.text for v in verdicts if v.kind == "not comparable")
    for text in (*sources, *reasons):
        page.print(text, highlight=False, markup=False)
    if outcome.unfinished:
        page.print(f"not finished: {'; '.join(outcome.unfinished)}", highlight=False)


def _verdict(line: Line) -> str:
    return line.verdict.text.split(":")[0]


def _expected(expected: Expected | None) -> str:
    from fedsieve.recipes.recipe import AtLeast, AtMost, Within

    if expected is None:
        return "-"
    sign = {Within: "", AtLeast: ">= ", AtMost: "<= "}[type(expected.bound)]
    return f"{sign}{expected.bound.value:.5g}"


def _ours(ours: Measured | None) -> str:
    if ours is None:
        return "-"
    spread = "" if ours.spread is None else f" +- {ours.spread:.2g}"
    return f"{ours.mean:.5g}{spread}"


def _digits(value: Decimal) -> str:
    """Six significant digits, whole numbers in full."""
    if value == value.to_integral_value() and value < 10**9:
        return f"{int(value):,}"
    return f"{value:.6g}"
