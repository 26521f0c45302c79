"""Figures of a comparison: scores against bytes and MACs, density over rounds, Pareto front."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedsieve.drawing.plot import Plot, plot
from fedsieve.drawing.svg import Axis, Point, Series
from fedsieve.drawing.units import large
from fedsieve.metrics.rows import AXES, scope
from fedsieve.metrics.rows import Axis as Cost
from fedsieve.report.budget import figure, non_dominated, spent
from fedsieve.report.compare import Group, metric_of, pareto_metric, pareto_points


class Mean(NamedTuple):
    """What had been spent and what was measured then: means over the seeds of a group."""

    x: float
    y: float
    spread: float


def draw(groups: Sequence[Group], score: str, folder: Path) -> list[Path]:
    """Draw all figures into `folder` as SVG; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    metric = pareto_metric(groups)
    what = Axis(f"{scope(metric)} {score}")
    density = Axis("density", includes=(0.0,))
    megabytes = Axis("MB sent, both ways (log)", is_log=True)
    macs = Axis("training MACs, zeros skipped (log)", large, is_log=True)
    rounds = Axis("rounds", is_whole=True)
    pictures = {
        "accuracy_mb": _over(groups, AXES["bytes"], metric, megabytes, what),
        "accuracy_macs": _over(groups, AXES["macs_ideal"], metric, macs, what),
        "density_rounds": _over(groups, AXES["rounds"], "density", rounds, density),
        "pareto": _pareto(groups, metric, what),
    }
    return [picture.save(folder / f"{name}.svg") for name, picture in pictures.items()]


def curve(g: Group, cost: Cost, field: str) -> list[Mean]:
    """A field of the rows against what was spent, at the rounds measured for every seed."""
    seeds = []
    for record in g.records:
        costs = zip(record.rows, spent(record.rows, cost), strict=True)
        pairs = {row.round: (x, getattr(row, field)) for row, x in costs}
        seeds.append({n: pair for n, pair in pairs.items() if pair[1] is not None})
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    xs = [figure(seed[n][0] for seed in seeds) for n in rounds]
    ys = [figure(seed[n][1] for seed in seeds) for n in rounds]
    return [Mean(x.mean, y.mean, y.spread or 0.0) for x, y in zip(xs, ys, strict=True) if x and y]


def against_bytes(groups: Sequence[Group]) -> tuple[list[list[tuple[float, float]]], list[str]]:
    """(MB sent both ways, score) of each group, and labels of groups that send nothing.

    The score is the global one where there is one, else the local one: every group has a curve.
    """
    series, silent = [], []
    for g in groups:
        means = curve(g, AXES["bytes"], metric_of(g))
        series.append([(m.x / 1e6, m.y) for m in means if m.x > 0])
        if means and not series[-1]:
            silent.append(g.label)
    return series, silent


def _over(groups: Sequence[Group], cost: Cost, field: str, x: Axis, y: Axis) -> Plot:
    """Curves of all groups; on a logarithmic axis, one that spends nothing is a line across."""
    curves = [curve(g, cost, field) for g in groups]
    places = [m.x for means in curves for m in means if m.x > 0]
    ends = [min(places), max(places)] if places else []
    series, labels = [], {}
    for i, (g, means) in enumerate(zip(groups, curves, strict=True)):
        labels[i] = g.label
        shown = [m for m in means if m.x > 0]
        if means and not shown:
            labels[i] += " (sends nothing)"
            shown = [means[-1]._replace(x=end) for end in ends]
        points = [Point(m.x / cost.unit, m.y, f"{labels[i]}: {m.y:.4f}") for m in shown]
        series.append(Series(i, points, [m.spread for m in shown]))
    return plot(series, labels, x, y, f"{y.label} over {x.label.removesuffix(' (log)')}")


def _pareto(groups: Sequence[Group], metric: str, y: Axis) -> Plot:
    """Final scores over bytes in all, and a line through those that no other dominates."""
    points = {
        label: Point(sent / 1e6, score, f"{label}: {score:.4f} at {sent / 1e6:.4g} MB")
        for label, (sent, score) in pareto_points(groups, metric).items()
    }
    front = non_dominated({label: (p.x, p.y) for label, p in points.items()})
    labels = dict(enumerate([*(g.label for g in groups), "not dominated"]))
    line = Series(len(groups), [points[label] for label in front])
    dots = [Series(i, [points[g.label]]) for i, g in enumerate(groups) if g.label in points]
    is_log = all(p.x for p in points.values())
    x = Axis(f"MB sent in all{' (log)' if is_log else ''}", is_log=is_log)
    return plot([line, *dots], labels, x, y, f"final {y.label} over MB sent in all")
