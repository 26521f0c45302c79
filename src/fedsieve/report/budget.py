"""What a run had reached when a budget was spent, and what it spent to reach a score.

Nothing is interpolated: the value at a budget is the last one measured at or before it.
"""

import statistics
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from fedsieve.jobs.library import Record
from fedsieve.metrics.rows import Axis, Row, best

SHARES = {"1": 1.0, "1/2": 0.5, "1/4": 0.25}  # of the largest common budget


class Figure(msgspec.Struct, frozen=True):
    """A mean over seeds; `spread` is the sample standard deviation, none for a single one."""

    mean: float
    spread: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + (f"±{self.spread:.4f}" if self.spread else "")


def figure(values: Iterable[float | None]) -> Figure | None:
    """Mean, spread and number of the values that are there."""
    known = [float(v) for v in values if v is not None]
    if not known:
        return None
    spread = statistics.stdev(known) if len(known) > 1 else None
    return Figure(statistics.fmean(known), spread, len(known))


def spent(rows: Sequence[Row], axis: Axis) -> list[int]:
    """What had been spent after each row."""
    values = [getattr(row, axis.field) for row in rows]
    return values if axis.field == "round" else list(accumulate(values))


def total(record: Record, axis: Axis) -> int:
    return max(spent(record.rows, axis), default=0)


def at(record: Record, axis: Axis, budget: float, metric: str) -> float | None:
    """The last value measured when at most `budget` was spent; none before the first one."""
    reached = None
    for row, cost in zip(record.rows, spent(record.rows, axis), strict=True):
        if cost > budget:
            break
        value = getattr(row, metric)
        reached = reached if value is None else value
    return reached


def reach(record: Record, axis: Axis, target: float, metric: str) -> int | None:
    """What had been spent when the metric first measured `target` or more; none if never."""
    for row, cost in zip(record.rows, spent(record.rows, axis), strict=True):
        value = getattr(row, metric)
        if value is not None and value >= target:
            return cost
    return None


def common(records: Sequence[Record], axis: Axis) -> int:
    """The largest budget all runs reach; one that spends nothing at all fits into any budget.

    Runs of one setting differ a little in coded bytes from seed to seed. Totals within 1 % of the
    smallest count as equal to it, or the last evaluation of all others would be lost.
    """
    totals = [t for record in records if (t := total(record, axis))]
    return max((t for t in totals if t <= 1.01 * min(totals)), default=0)


def default_target(records: Sequence[Record], metric: str) -> float | None:
    """95 % of the best value of the worst run that has the metric."""
    tops = [top for record in records if (top := best(record.rows, metric)) is not None]
    if not tops:
        return None
    return min(tops) - 0.05 * abs(min(tops))  # R2 may be negative


def non_dominated(points: dict[str, tuple[float, float]]) -> list[str]:
    """Names of (cost, score) points that no other beats in one without losing in the other."""

    def is_beaten(cost: float, score: float) -> bool:
        return any(c <= cost and s >= score and (c < cost or s > score) for c, s in points.values())

    return sorted((n for n, p in points.items() if not is_beaten(*p)), key=lambda n: points[n])
