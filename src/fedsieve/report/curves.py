"""Figures of a comparison: scores against bytes and MACs, density over rounds, Pareto front."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedsieve.core.errors import ConfigError
from fedsieve.metrics.rows import AXES, Axis, scope
from fedsieve.report.budget import figure, non_dominated, spent
from fedsieve.report.compare import Group, metric_of, pareto_metric, pareto_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FORMATS = ("svg", "png")


class Curve(NamedTuple):
    """Means over the seeds of a group, at the rounds all of them have."""

    x: list[float]
    y: list[float]
    spread: list[float]


def draw(groups: Sequence[Group], score: str, folder: Path) -> list[Path]:
    """Draw all figures into `folder`, each as SVG and PNG; returns their paths.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an optional extra
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "drawing needs matplotlib: pip install 'fedsieve[report]', or leave out --out."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    metric, paths = pareto_metric(groups), []
    wording = f"{scope(metric)} {score}"
    with mpl.rc_context({"svg.hashsalt": "fedsieve", "axes.grid": True, "grid.alpha": 0.3}):
        for name, axis, label in (
            ("accuracy_mb", AXES["bytes"], "MB sent, both ways"),
            ("accuracy_macs", AXES["macs_ideal"], "training MACs, zeros skipped"),
        ):
            canvas, axes = _blank(Canvas, label, wording)
            _against(axes, groups, axis, metric)
            paths += _save(canvas, axes, folder / name)
        canvas, axes = _blank(Canvas, "round", "density")
        for g in groups:
            _add(axes, curve(g, AXES["rounds"], "density"), g.label)
        axes.set_ylim(bottom=0)
        paths += _save(canvas, axes, folder / "density_rounds")
        canvas, axes = _blank(Canvas, "MB sent in all", f"final {wording}")
        _pareto(axes, groups, metric)
        paths += _save(canvas, axes, folder / "pareto")
    return paths


def curve(g: Group, axis: Axis, field: str) -> Curve:
    """A field of the rows against what was spent, where it was measured for every seed."""
    seeds = []
    for record in g.records:
        costs = zip(record.rows, spent(record.rows, axis), strict=True)
        pairs = {row.round: (cost, getattr(row, field)) for row, cost in costs}
        seeds.append({n: pair for n, pair in pairs.items() if pair[1] is not None})
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    xs = [figure(seed[n][0] for seed in seeds) for n in rounds]
    ys = [figure(seed[n][1] for seed in seeds) for n in rounds]
    known = [(x.mean, y.mean, y.spread or 0.0) for x, y in zip(xs, ys, strict=True) if x and y]
    return Curve([k[0] for k in known], [k[1] for k in known], [k[2] for k in known])


def against_bytes(groups: Sequence[Group]) -> tuple[list[list[tuple[float, float]]], list[str]]:
    """(MB sent both ways, score) of each group, and labels of groups that send nothing.

    The score is the global one where there is one, else the local one: every group has a curve.
    """
    series, silent = [], []
    for g in groups:
        found = curve(g, AXES["bytes"], metric_of(g))
        series.append([(x / 1e6, y) for x, y in zip(found.x, found.y, strict=True) if x > 0])
        if found.x and not series[-1]:
            silent.append(g.label)
    return series, silent


def _blank(kind: "type[Canvas]", x: str, y: str) -> "tuple[Canvas, Axes]":
    canvas = kind(figsize=(6.4, 4.0), layout="constrained")
    axes = canvas.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return canvas, axes


def _against(axes: "Axes", groups: Sequence[Group], axis: Axis, metric: str) -> None:
    axes.set_xscale("log")
    for g in groups:
        found = curve(g, axis, metric)
        if found.x and not found.x[-1]:  # has no place on a logarithmic axis
            axes.axhline(
                found.y[-1], linestyle=":", color="grey", label=f"{g.label} (sends nothing)"
            )
        else:
            _add(axes, found._replace(x=[x / axis.unit for x in found.x]), g.label)


def _add(axes: "Axes", found: Curve, label: str) -> None:
    (line,) = axes.plot(found.x, found.y, marker=".", markersize=4, label=label)
    if any(found.spread):
        low = [y - s for y, s in zip(found.y, found.spread, strict=True)]
        high = [y + s for y, s in zip(found.y, found.spread, strict=True)]
        axes.fill_between(found.x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def _pareto(axes: "Axes", groups: Sequence[Group], metric: str) -> None:
    points = pareto_points(groups, metric)
    if all(sent for sent, _ in points.values()):
        axes.set_xscale("log")
    for label, (sent, score) in points.items():
        axes.plot([sent / 1e6], [score], marker="o", linestyle="none", label=label)
    front = [points[label] for label in non_dominated(points)]
    axes.plot(
        [sent / 1e6 for sent, _ in front],
        [score for _, score in front],
        color="grey",
        linewidth=1,
        zorder=0,
        label="not dominated",
    )


def _save(canvas: "Canvas", axes: "Axes", path: Path) -> list[Path]:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="small")
    paths = [path.with_suffix(f".{kind}") for kind in FORMATS]
    for target in paths:
        metadata = {"Date": None} if target.suffix == ".svg" else None  # equal data, equal file
        canvas.savefig(target, dpi=150, metadata=metadata)
    return paths
