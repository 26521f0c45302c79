"""Run what a recipe still lacks, and put its figures beside those expected."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsieve.core.errors import ConfigError, RoundError, unknown
from fedsieve.core.keys import fold
from fedsieve.data.sources.registry import load
from fedsieve.jobs import library
from fedsieve.jobs.config import make
from fedsieve.jobs.job import canonical
from fedsieve.jobs.library import Record
from fedsieve.jobs.progress import Watcher
from fedsieve.recipes.recipe import (
    METRICS,
    Expected,
    Measured,
    Recipe,
    Row,
    TierName,
    Verdict,
    judge,
    measured,
)

log = logging.getLogger("fedsieve")


@dataclass(frozen=True)
class Line:
    """One figure of a row."""

    row: str
    metric: str
    expected: Expected | None
    ours: Measured | None
    verdict: Verdict


@dataclass(frozen=True)
class Cost:
    """Means over the finished seeds of a row: bytes sent, by the papers' formula, and MACs."""

    true_bytes: float
    paper_bytes: float
    macs_dense: float
    macs_ideal: float


@dataclass(frozen=True)
class Outcome:
    """The table of a recipe; `unfinished` names rows and seeds that were left out."""

    recipe: str
    tier: TierName
    seeds: int
    lines: tuple[Line, ...]
    costs: dict[str, Cost]
    unfinished: tuple[str, ...]

    @property
    def is_off(self) -> bool:
        return any(line.verdict.kind == "off" for line in self.lines)


def reproduce(
    recipe: Recipe,
    tier: TierName,
    root: Path,
    *,
    seeds: int = 1,
    workers: int = 1,
    data_root: Path | None = None,
    watch: Callable[[str], Watcher] = lambda _: Watcher(),
) -> Outcome:
    """The table of a recipe in a tier, over seeds 0 .. seeds-1.

    Finished runs in the library at `root` are used again and interrupted ones continued. An
    interrupt ends the work early; the outcome then holds what was finished.

    Args:
        recipe: what to run.
        tier: how large to run it.
        root: the library of runs.
        seeds: how many runs for each row.
        workers: processes that train clients side by side.
        data_root: folder of the data files.
        watch: makes the follower of a run from the run's label.

    Raises:
        ConfigError: the recipe has no such tier, a setting is wrong or a file to start from is
            missing; before anything runs.
        DataError: a data set is missing; before anything runs.
    """
    if tier not in recipe.tiers:
        raise ConfigError(unknown(f"tier of {recipe.name}", tier, recipe.tiers))
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: at least one is needed.")
    extra: dict[str, Any] = {"workers": workers}
    if data_root is not None:
        extra["data_root"] = str(data_root)
    jobs = {
        (row.label, seed): {**recipe.settings(row, tier), **extra, "seed": seed}
        for seed in range(seeds)
        for row in recipe.rows
    }
    starts = {canonical(make(settings)).init_from for settings in jobs.values()}
    if any(library.find(settings, root) is None for settings in jobs.values()):
        for name in recipe.datasets(tier):
            load(name, data_root, fold(0, "dataset"))
        for start in starts:
            if start is not None and not Path(start).is_file():
                raise ConfigError(
                    f"{recipe.name}, tier {tier}, starts from {start}, which is not there: put "
                    "trained tensors of the model into that safetensors file."
                )
    finished = _finish(jobs, root, watch)
    records = {
        row.label: [finished[row.label, s] for s in range(seeds) if (row.label, s) in finished]
        for row in recipe.rows
    }
    return Outcome(
        recipe.name,
        tier,
        seeds,
        tuple(x for row in recipe.rows for x in lines(recipe, row, tier, records[row.label])),
        {label: _cost(found) for label, found in records.items() if found},
        tuple(f"{label}, seed {seed}" for label, seed in jobs if (label, seed) not in finished),
    )


def lines(recipe: Recipe, row: Row, tier: TierName, records: list[Record]) -> list[Line]:
    """The figures of one row: what the tier or the paper expects, and of `shown` what it has."""
    departure = recipe.departure(row, tier)
    expected: list[tuple[Expected, str]] = [
        *((x, "") for x in recipe.tiers[tier].expected.get(row.label, ())),
        *((x, departure) for x in row.expected),
    ]
    found = []
    for metric in dict.fromkeys((*recipe.shown, *(x.metric for x, _ in expected))):
        ours = measured([v for r in records if (v := METRICS[metric](r)) is not None])
        figures = [(x, d) for x, d in expected if x.metric == metric]
        found += [Line(row.label, metric, x, ours, judge(ours, x, d)) for x, d in figures]
        if not figures and (ours is not None or not records):
            found.append(Line(row.label, metric, None, ours, judge(ours, None)))
    return found


def _finish(
    jobs: dict[tuple[str, int], dict[str, Any]], root: Path, watch: Callable[[str], Watcher]
) -> dict[tuple[str, int], Record]:
    """Finished runs; runs the others, one seed of all rows after the other.

    A row that diverges is left out and tried again by the next call; the others go on.
    """
    finished: dict[tuple[str, int], Record] = {}
    try:
        for (label, seed), settings in jobs.items():
            record = library.find(settings, root)
            if record is None:
                try:
                    with watch(f"{label}, seed {seed}") as watcher:
                        record = library.obtain(settings, root, watcher)
                except RoundError as error:
                    log.warning("%s, seed %d is left out: %s", label, seed, error)
                    continue
            if record.summary.status != "finished":
                break
            finished[label, seed] = record
    except KeyboardInterrupt:
        pass
    return finished


def _cost(records: list[Record]) -> Cost:
    summaries, n = [record.summary for record in records], len(records)
    return Cost(
        sum(s.sent_bytes for s in summaries) / n,
        sum(s.paper_bytes for s in summaries) / n,
        sum(s.macs_dense for s in summaries) / n,
        sum(s.macs_ideal for s in summaries) / n,
    )
