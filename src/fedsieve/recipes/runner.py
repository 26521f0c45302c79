"""Make what a recipe still lacks, and put its figures beside those expected."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from fedsieve.core.errors import ConfigError, RoundError
from fedsieve.core.keys import fold
from fedsieve.data.sources.registry import load
from fedsieve.engine import disk
from fedsieve.jobs import library
from fedsieve.jobs.config import make
from fedsieve.jobs.job import canonical
from fedsieve.jobs.library import Record
from fedsieve.jobs.progress import Watcher
from fedsieve.metrics.rows import Row as RoundRow
from fedsieve.recipes.recipe import METRICS, Figures, Recipe, Row, Settings, TierName
from fedsieve.recipes.verdict import Expected, Measured, Verdict, judge, measured

EVALUATED = (
    "global_accuracy", "local_accuracy", "seen_accuracy", "density", "local_density",
    "layer_mean_density",
)  # fmt: skip
log = logging.getLogger("fedsieve")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One row with one seed: its figures, and of a run the evaluated rounds."""

    row: str
    seed: int = 0
    settings: Settings = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    stopped: str = ""  # the error that ended it
    formula: str = ""
    expected: tuple[Expected, ...] = ()

    def line(self) -> dict[str, Any]:
        """What is stored of it."""
        return {n: v for n, v in vars(self).items() if n != "expected" and (v or n == "seed")}


@dataclass(frozen=True)
class Line:
    """One figure of a row."""

    row: str
    metric: str
    expected: Expected | None
    ours: Measured | None
    verdict: Verdict
    formula: str = ""


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
    trials: tuple[Trial, ...]

    @property
    def is_off(self) -> bool:
        return any(line.verdict.kind == "off" for line in self.lines)


class _Job(NamedTuple):
    """A row with a seed, to be found in the library or made."""

    recipe: str
    row: Row
    seed: int
    given: Settings
    machine: Settings  # what decides no result

    @property
    def label(self) -> str:
        return f"{self.row.label}, seed {self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.given, **self.machine, "seed": self.seed}

    def kept(self, root: Path) -> Path:
        """Where the figures of a measured row are."""
        return root / "studies" / f"{self.recipe}-{library.run_hash(self.settings)}.json"


def reproduce(
    recipe: Recipe,
    tier: TierName,
    root: Path,
    *,
    seeds: int = 1,
    workers: int = 1,
    only: str = "",
    data_root: Path | None = None,
    watch: Callable[[str], Watcher] = lambda _: Watcher(),
) -> Outcome:
    """The table of a recipe in a tier, over seeds 0 .. seeds-1.

    What is finished in the library at `root` is used again and interrupted runs are continued. An
    interrupt ends the work early; the outcome then holds what was finished. A row that diverges is
    left out and tried again by the next call; the others go on.

    Args:
        recipe: what to run.
        tier: how large to run it.
        root: the library of runs.
        seeds: how many runs for each row.
        workers: processes that train clients side by side.
        only: rows whose label has this in it.
        data_root: folder of the data files.
        watch: makes the follower of a run from the run's label.

    Raises:
        ConfigError: the recipe has no such tier or row, a setting is wrong or a file to start from
            is missing; before anything runs.
        DataError: a data set is missing; before anything runs.
    """
    rows = [row for row in recipe.rows_of(tier) if only in row.label]
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: at least one is needed.")
    if not rows:
        names = "; ".join(row.label for row in recipe.rows_of(tier))
        raise ConfigError(f"{recipe.name}, tier {tier}, has no row with {only!r}. Rows: {names}.")
    machine = {"workers": workers} | ({} if data_root is None else {"data_root": str(data_root)})
    jobs = [
        _Job(recipe.name, row, seed, recipe.settings(row, tier), machine)
        for seed in range(seeds)
        for row in rows
        if row.calculate is None or seed == 0
    ]
    done = {job.label: kept for job in jobs if (kept := _find(job, root)) is not None}
    missing = [job for job in jobs if job.label not in done]
    _check_inputs(recipe.name, tier, missing, data_root)
    stopped = _finish(missing, done, root, watch)
    trials = {row.label: [t for j in jobs if j.row is row for t in done.get(j.label, ())]
              for row in rows}  # fmt: skip
    return Outcome(
        recipe.name,
        tier,
        seeds,
        tuple(x for row in rows for x in lines(recipe, row, tier, trials[row.label])),
        {label: cost for label, of_row in trials.items() if (cost := _cost(of_row))},
        tuple(job.label for job in jobs if job.label not in done),
        (*(t for job in jobs for t in done.get(job.label, ())), *stopped),
    )


def lines(recipe: Recipe, row: Row, tier: TierName, trials: Sequence[Trial]) -> list[Line]:
    """The figures of a row: what the tier or the paper expects, and what is shown besides."""
    departure = recipe.departure(row, tier) if row.expected else ""
    is_run = row.measure is None and row.calculate is None
    table = []
    for label in dict.fromkeys(t.row for t in trials) or (row.label,):
        of_label = [t for t in trials if t.row == label]
        expected = [
            *((x, "") for x in recipe.tiers[tier].expected.get(label, ())),
            *((x, departure) for x in row.expected),
            *((x, "") for t in of_label[:1] for x in t.expected),
        ]
        shown = recipe.shown if is_run else tuple(n for t in of_label[:1] for n in t.figures)
        formula = of_label[0].formula if of_label else ""
        for metric in dict.fromkeys((*shown, *(x.metric for x, _ in expected))):
            ours = measured([t.figures[metric] for t in of_label if metric in t.figures])
            aims = [(x, d) for x, d in expected if x.metric == metric]
            if not aims and (ours is not None or not of_label):
                table.append(Line(label, metric, None, ours, judge(ours, None), formula))
            table += [Line(label, metric, x, ours, judge(ours, x, d), formula) for x, d in aims]
    return table


def evaluated(rows: Sequence[RoundRow]) -> list[dict[str, float]]:
    """Evaluated rounds with scores, densities and the bytes sent since the start."""
    sent, rounds = dict.fromkeys(("up_bytes", "down_bytes", "paper_bytes"), 0), []
    for row in rows:
        sent = {name: total + getattr(row, name) for name, total in sent.items()}
        if row.scores:
            values = {n: v for n in EVALUATED if (v := getattr(row, n)) is not None}
            rounds.append(
                {"round": row.round, **{n: round(v, 5) for n, v in values.items()}, **sent}
            )
    return rounds


def figures_of(record: Record) -> Figures:
    """All figures of a finished run."""
    figures = {name: metric(record) for name, metric in METRICS.items()}
    return {name: value for name, value in figures.items() if value is not None}


def _check_inputs(name: str, tier: TierName, jobs: list[_Job], data_root: Path | None) -> None:
    configs = [canonical(make(job.settings)) for job in jobs if job.row.calculate is None]
    for dataset in dict.fromkeys(config.dataset for config in configs):
        load(dataset, data_root, fold(0, "dataset"))
    for start in {config.init_from for config in configs}:
        if start is not None and not Path(start).is_file():
            raise ConfigError(
                f"{name}, tier {tier}, starts from {start}, which is not there: put trained "
                "tensors of the model into that safetensors file."
            )


def _finish(
    jobs: list[_Job], done: dict[str, list[Trial]], root: Path, watch: Callable[[str], Watcher]
) -> list[Trial]:
    """Add to `done` what can be made, one seed of all rows after the other; returns the others."""
    stopped = []
    try:
        for job in jobs:
            try:
                with watch(job.label) as watcher:
                    trials = _make(job, root, watcher)
            except RoundError as error:
                log.warning("%s is left out: %s", job.label, error)
                reason = str(error).partition(".")[0]
                stopped.append(_trial(job, job.row.label, stopped=reason))
                continue
            if trials is None:
                break
            done[job.label] = trials
    except KeyboardInterrupt:
        pass
    return stopped


def _find(job: _Job, root: Path) -> list[Trial] | None:
    """What the library has of a job, if it is finished."""
    if job.row.calculate is not None:
        return None
    if job.row.measure is None:
        record = library.find(job.settings, root)
        return None if record is None else [_of_run(job, record)]
    path = job.kept(root)
    if not path.exists():
        return None
    rows = msgspec.json.decode(path.read_bytes(), type=dict[str, Figures])
    return [_trial(job, f"{job.row.label}: {name}", figures=x) for name, x in rows.items()]


def _make(job: _Job, root: Path, watcher: Watcher) -> list[Trial] | None:
    """Make what is not there yet; None if it was interrupted."""
    if job.row.calculate is not None:
        return [
            Trial(row=x.label, figures={x.unit: float(x.value)}, formula=x.formula,
                  expected=x.expected)
            for x in job.row.calculate()
        ]  # fmt: skip
    if job.row.measure is None:
        record = library.find_or_run(job.settings, root, watcher)
        return [_of_run(job, record)] if record.summary.status == "finished" else None
    path, rows = job.kept(root), job.row.measure(job.settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.write(path, msgspec.json.format(msgspec.json.encode(rows), indent=2))
    return _find(job, root)


def _trial(job: _Job, label: str, **fields: Any) -> Trial:
    return Trial(row=label, seed=job.seed, settings=job.given, **fields)


def _of_run(job: _Job, record: Record) -> Trial:
    return _trial(job, job.row.label, figures=figures_of(record), rounds=evaluated(record.rows))


def _cost(trials: Sequence[Trial]) -> Cost | None:
    runs = [t.figures for t in trials if "sent_bytes" in t.figures]
    names = ("sent_bytes", "paper_bytes", "macs_dense", "macs_ideal")
    return Cost(*(mean(f[name] for f in runs) for name in names)) if runs else None
