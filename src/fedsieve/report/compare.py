"""Finished runs side by side: equal communication, equal MACs, equal rounds.

Seeds of one configuration form a group. Groups are compared only if they learnt from the same
partitions of the same data and were scored on the same part of it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from fedsieve.core.errors import ConfigError
from fedsieve.jobs.config import SETTINGS
from fedsieve.jobs.library import TUNING_FILE, Record, run_hash
from fedsieve.metrics.rows import AXES, SCORES, last
from fedsieve.report import budget
from fedsieve.report.answer import Candidate, answer, reference
from fedsieve.report.budget import SHARES, Figure, figure
from fedsieve.report.labels import labels


class Group(NamedTuple):
    """Runs of one configuration that differ in their seeds alone."""

    label: str
    records: list[Record]
    trials: int | None  # of tuning, where known


class Line(msgspec.Struct, frozen=True):
    """One configuration: what it ended with and what it spent."""

    label: str
    method: str
    seeds: list[int]
    runs: list[str]
    trials: int | None
    global_accuracy: Figure | None
    local_accuracy: Figure | None
    density: Figure | None
    spent: dict[str, Figure | None]  # by axis
    share: float | None = None  # of the bytes of the comparison's `base`, both ways together

    @property
    def is_local(self) -> bool:
        """Whether there is no global model, so that the score is that of the clients' own."""
        return self.global_accuracy is None and self.local_accuracy is not None

    @property
    def score(self) -> Figure | None:
        return self.local_accuracy if self.is_local else self.global_accuracy


class AtBudget(msgspec.Struct, frozen=True):
    """Scores of every configuration when `budget` was spent."""

    axis: str
    share: str  # of the largest budget all runs reach
    budget: float
    metric: str
    values: dict[str, Figure | None]  # by label


class Reached(msgspec.Struct, frozen=True):
    """What every configuration spent to reach `target`; n counts the runs that did."""

    metric: str
    target: float
    spent: dict[str, dict[str, Figure | None]]  # by label, then axis


class Comparison(msgspec.Struct, frozen=True):
    """Everything `fedsieve compare` shows."""

    answer: str
    base: str | None  # of several lines, the label of the one whose bytes others are a share of
    dataset: str
    score: str
    lines: list[Line]
    budgets: list[AtBudget]
    reached: list[Reached]
    pareto: list[str]  # labels that no other beats in both bytes and score
    warnings: list[str]


class _Tuned(msgspec.Struct):
    """The part of a tuning file that is shown here."""

    method: str
    trials: int


def compare(
    records: Sequence[Record], target: float | None = None, *, anyway: bool = False
) -> Comparison:
    """Compare runs; `target` is the score to reach (95 % of the worst run's best).

    Raises:
        ConfigError: the runs cannot be compared, unless `anyway`.
    """
    groups, warnings = group(records)
    if differences := mismatches(groups):
        if not anyway:
            raise ConfigError(
                f"these runs cannot be compared: {'. '.join(differences)}. "
                "Leave some out, or give --anyway to compare them all the same."
            )
        warnings += differences
    kept = [record for g in groups for record in g.records]
    summary, lines = kept[0].summary, [_line(g) for g in groups]
    known, base = candidates(groups)
    return Comparison(
        answer=answer(known, base, summary.score),
        base=base,
        dataset=summary.dataset,
        score=summary.score,
        lines=_with_shares(lines, base),
        budgets=_budgets(groups, kept),
        reached=[r for m in SCORES if (r := _reached(groups, kept, m, target)) is not None],
        pareto=budget.non_dominated({c.label: (c.sent, c.score) for c in known}),
        warnings=warnings + _unequal_tuning(groups),
    )


def group(records: Sequence[Record]) -> tuple[list[Group], list[str]]:
    """Groups of seeds in the order given, and what is odd about them."""
    if not records:
        raise ConfigError("nothing to compare: give the folders of finished runs.")
    warnings = [
        f"{r.path}: stopped {r.summary.status}" for r in records if r.summary.status != "finished"
    ]
    alike: dict[str, dict[int, Record]] = {}
    for record in records:
        settings = {n: getattr(record.config, n) for n in SETTINGS} | {"seed": 0}
        same = alike.setdefault(run_hash(settings | {"options": record.config.options}), {})
        if record.config.seed in same:
            other = same[record.config.seed].path
            warnings.append(f"{record.path}: the same run as {other}, counted once")
        else:
            same[record.config.seed] = record
    members = [list(same.values()) for same in alike.values()]
    names = labels([m[0] for m in members], but=("seed",))
    return [
        Group(name, m, max((t for r in m if (t := trials(r)) is not None), default=None))
        for name, m in zip(names, members, strict=True)
    ], warnings


def mismatches(groups: Sequence[Group]) -> list[str]:
    """Why these groups should not be compared; seeds of one group may differ in their partition."""
    traits: dict[str, Callable[[Record], str]] = {
        "data set": lambda r: r.summary.dataset,
        "score_on": lambda r: r.config.score_on,
        "partition_fingerprint": lambda r: r.summary.partition_fingerprint,
    }
    told = []
    for name, trait in traits.items():
        holders: dict[str, list[str]] = {}
        for g in groups:
            values = ", ".join(sorted({trait(r) for r in g.records}))
            holders.setdefault(values, []).extend(str(r.path) for r in g.records)
        if len(holders) > 1:
            each = "; ".join(f"{', '.join(runs)} with {v}" for v, runs in holders.items())
            told.append(f"{name} differs: {each}")
    return told


def trials(record: Record) -> int | None:
    """How many tuning trials the method had: from the file in the run folder or next to it."""
    for folder in (record.path, record.path.parent):
        try:
            tuned = msgspec.json.decode((folder / TUNING_FILE).read_bytes(), type=_Tuned)
        except (OSError, msgspec.MsgspecError):
            continue
        if tuned.method == record.config.method:
            return tuned.trials
    return None


def pareto_metric(groups: Sequence[Group]) -> str:
    """Global accuracy if every run has it, else local."""
    records = [r for g in groups for r in g.records]
    has_global = all(last(r.rows, "global_accuracy") is not None for r in records)
    return "global_accuracy" if has_global else "local_accuracy"


def metric_of(g: Group) -> str:
    """The score of a group: the global one if it has one, else the local one."""
    has_global = any(last(r.rows, "global_accuracy") is not None for r in g.records)
    return "global_accuracy" if has_global else "local_accuracy"


def pareto_points(groups: Sequence[Group], metric: str) -> dict[str, tuple[float, float]]:
    """(bytes in all, final score) of each group, means over its seeds."""
    points = {}
    for g in groups:
        sent = figure(budget.total(r, AXES["bytes"]) for r in g.records)
        score = figure(last(r.rows, metric) for r in g.records)
        if sent is not None and score is not None:
            points[g.label] = (sent.mean, score.mean)
    return points


def candidates(groups: Sequence[Group]) -> tuple[list[Candidate], str | None]:
    """The groups that have a score, and of several the one whose bytes others are a share of."""
    lines = [_line(g) for g in groups]
    known = [
        Candidate(line.label, line.score.mean, sent.mean, line.is_local)
        for line in lines
        if line.score is not None and (sent := line.spent["bytes"]) is not None
    ]
    which = {g.label: (g.records[0].config.method, g.records[0].config.wire) for g in groups}
    return known, reference(dict(which), known) if len(groups) > 1 else None


def _with_shares(lines: list[Line], base: str | None) -> list[Line]:
    whole = next((x.spent["bytes"] for x in lines if x.label == base), None)
    if whole is None or not whole.mean:
        return lines
    sent = [line.spent["bytes"] for line in lines]
    return [
        msgspec.structs.replace(line, share=part.mean / whole.mean if part else None)
        for line, part in zip(lines, sent, strict=True)
    ]


def _line(g: Group) -> Line:
    return Line(
        label=g.label,
        method=g.records[0].config.method,
        seeds=[r.config.seed for r in g.records],
        runs=[str(r.path) for r in g.records],
        trials=g.trials,
        global_accuracy=figure(last(r.rows, "global_accuracy") for r in g.records),
        local_accuracy=figure(last(r.rows, "local_accuracy") for r in g.records),
        density=figure(last(r.rows, "density") for r in g.records),
        spent={
            name: figure(budget.total(r, axis) for r in g.records) for name, axis in AXES.items()
        },
    )


def _budgets(groups: Sequence[Group], records: Sequence[Record]) -> list[AtBudget]:
    cells = []
    for name, axis in AXES.items():
        whole = budget.common(records, axis)
        for share, part in SHARES.items():
            for metric in SCORES if whole else ():
                values = {
                    g.label: figure(budget.at(r, axis, whole * part, metric) for r in g.records)
                    for g in groups
                }
                cells.append(AtBudget(name, share, whole * part, metric, values))
    return cells


def _reached(
    groups: Sequence[Group], records: Sequence[Record], metric: str, target: float | None
) -> Reached | None:
    lowest = budget.default_target(records, metric)
    if lowest is None:
        return None
    goal = lowest if target is None else target
    return Reached(
        metric,
        goal,
        {
            g.label: {
                name: figure(budget.reach(r, axis, goal, metric) for r in g.records)
                for name, axis in AXES.items()
            }
            for g in groups
        },
    )


def _unequal_tuning(groups: Sequence[Group]) -> list[str]:
    if len({g.trials for g in groups}) < 2:
        return []
    each = ", ".join(f"{g.label}: {'-' if g.trials is None else g.trials}" for g in groups)
    return [f"tuning trials differ ({each}); the more tuned one has an advantage"]
