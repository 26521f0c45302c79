"""`fedsieve reproduce`: the papers' tables, run again or recomputed."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from fedsieve.cli import settings as s
from fedsieve.cli.compare import console
from fedsieve.core.errors import ConfigError, unknown
from fedsieve.drawing.units import duration, size

if TYPE_CHECKING:
    from fedsieve.jobs.api import Watcher
    from fedsieve.recipes.recipe import Recipe, TierName
    from fedsieve.recipes.runner import Line, Outcome
    from fedsieve.recipes.verdict import Expected, Measured


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
    only: Annotated[str, typer.Option(help="Rows whose name has this text in it.")] = "",
    data_root: s.DataRoot = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Store the figures of every row and seed in FOLDER/NAME/TIER.jsonl."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The table as one JSON line.")] = False,
) -> None:
    """Run a table of a paper again and compare, or list the tables there are.

    What is finished in the library is not run again; what was interrupted goes on. Only the tier
    `full` is judged against the paper. Exit code 1: a figure is off; 130: not finished.

    ```
    fedsieve reproduce
    fedsieve reproduce communication_totals
    fedsieve reproduce em_fashion_mnist --tier small --seeds 3 --workers 2 --write results
    ```
    """
    from fedsieve.jobs.api import Watcher
    from fedsieve.jobs.progress import shown
    from fedsieve.recipes import results
    from fedsieve.recipes.recipe import find
    from fedsieve.recipes.runner import reproduce as reproduce_recipe

    if name is None:
        _list(data_root)
        return
    recipe, chosen = find(name), _tier(tier)

    def watch(label: str) -> Watcher:
        if json:
            return Watcher()
        typer.echo(label)
        return shown()

    outcome = reproduce_recipe(
        recipe, chosen, root,
        seeds=seeds, workers=workers, only=only, data_root=data_root, watch=watch,
    )  # fmt: skip
    if write is not None:
        words = ["fedsieve", "reproduce", name, "--tier", tier, "--seeds", str(seeds)]
        command = shlex.join([*words, *(["--only", only] if only else [])])
        path = write / name / f"{tier}.jsonl"
        results.add(path, command, [trial.line() for trial in outcome.trials])
    if json:
        table = dataclasses.asdict(dataclasses.replace(outcome, trials=()))
        typer.echo(msgspec.json.encode(table).decode())
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
    from fedsieve.data.sources.registry import catalogue
    from fedsieve.recipes.estimate import MACS_PER_SECOND, STEP_SECONDS, estimate
    from fedsieve.recipes.recipe import registered

    present = {line.name: line.is_present for line in catalogue(data_root)}
    table = Table("recipe", "tier", "rows", "rounds", "one core, roughly", "data", box=None)
    for recipe in registered().values():
        table.add_row(f"[bold]{recipe.name}[/bold]")
        for tier in recipe.tiers:
            needed = ", ".join(
                d if present.get(d.split("(")[0], True) else f"{d} (missing)"
                for d in recipe.datasets(tier)
            )
            cost = estimate(recipe, tier)
            seconds = cost.core_seconds
            time = "unknown" if seconds is None else duration(seconds) if seconds else "seconds"
            table.add_row("", tier, str(cost.rows), str(cost.rounds), time, needed or "none needed")
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


def _print_outcome(recipe: Recipe, outcome: Outcome) -> None:

    has_formulas = any(line.formula for line in outcome.lines)
    extra = ["formula"] if has_formulas else []
    table = Table("row", *extra, "metric", "expected", "ours", "n", "verdict", box=None)
    before = ""
    for line in outcome.lines:
        label = "" if line.row == before else line.row
        n = "-" if line.ours is None else str(line.ours.n)
        words = [line.formula] if has_formulas else []
        figures = (line.metric, _expected(line.expected), _ours(line.ours), n)
        table.add_row(label, *words, *figures, _verdict(line))
        before = line.row
    costs = Table("row", "true bytes", "4 bytes a value", "MACs", box=None)
    for label, cost in outcome.costs.items():
        sent = (size(round(count)) for count in (cost.true_bytes, cost.paper_bytes))
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
    for text in (*(() if has_formulas else sources), *reasons):
        page.print(text, highlight=False, markup=False)
    kinds = [verdict.kind for verdict in verdicts]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    page.print(f"{len(kinds)} figures: {counts}", highlight=False)
    if outcome.unfinished:
        page.print(f"not finished: {'; '.join(outcome.unfinished)}", highlight=False)


def _verdict(line: Line) -> str:
    verdict = line.verdict
    return verdict.kind if verdict.kind == "not comparable" else verdict.text


def _expected(expected: Expected | None) -> str:
    from fedsieve.recipes.verdict import AtLeast, AtMost, Printed

    if expected is None:
        return "-"
    if isinstance(expected.bound, Printed):
        return expected.bound.digits
    sign = {AtLeast: ">= ", AtMost: "<= "}.get(type(expected.bound), "")
    return f"{sign}{expected.bound.value:.5g}"


def _ours(ours: Measured | None) -> str:
    """Five significant digits, whole numbers in full."""
    if ours is None:
        return "-"
    spread = "" if ours.spread is None else f" +- {ours.spread:.2g}"
    is_whole = not spread and ours.mean == int(ours.mean) and abs(ours.mean) < 1e9
    return f"{ours.mean:,.0f}" if is_whole else f"{ours.mean:.5g}{spread}"
