"""The sections of a page that follow a run over rounds: summary, scores, cost, density."""

from collections.abc import Callable, Sequence
from typing import Any

from fedsieve.drawing import svg, units
from fedsieve.drawing.svg import Axis, Point, Series
from fedsieve.jobs.settings import NOT_HASHED
from fedsieve.metrics.rows import AXES, SCORES, SUMMARY, Row, Unit, scope
from fedsieve.report.budget import spent
from fedsieve.report.figures import Run, differing, spread, thinned
from fedsieve.report.markup import Block, Content, Figure, Grid, Note, Panels, Table, cell

POINTS = 400  # in one picture, over all runs
COLUMNS = 60  # rounds across a heat map
ROUND = Axis("round", is_whole=True)
TEXT: dict[Unit, Callable[[Any], str]] = {
    "bytes": units.size,
    "MACs": units.large,
    "values": units.large,
    "s": units.duration,
    "share": "{:.4f}".format,
    "nats": "{:.4f}".format,
}


def _text(value: Any, unit: Unit, score: str) -> str:
    """A figure in the way that suits its unit; `score` is what scores are."""
    if value is None or value == {}:
        return units.MISSING
    if unit == "score":
        return units.score(value, score)
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.4g}" for name, number in value.items())
    return TEXT.get(unit, str)(value)


def summary(runs: Sequence[Run]) -> list[Block]:
    """Every figure of result.json, exact in `data-value`; the best of several runs is marked."""
    rows: list[list[Content]] = []
    for field, metric in SUMMARY.items():
        values = [getattr(run.record.summary, field) for run in runs]
        known = [v for v in values if v is not None]
        is_judged = metric.better and known and len(set(values)) > 1
        best = (max if metric.better == "higher" else min)(known) if is_judged else None
        cells = [
            cell(_text(value, metric.unit, run.record.summary.score), value,
                 "best" if best is not None and value == best else None,
                 run=run.number, field=field)
            for run, value in zip(runs, values, strict=True)
        ]  # fmt: skip
        rows.append([metric.label, *cells])
    about = Note(
        f"{'Bold: the best of the runs. ' if len(runs) > 1 else ''}Global is the score of one "
        "model on all test data, local the mean over clients of the score on their own. "
        "MB = 10⁶ bytes; MACs are those of training."
    )
    return [Table("Final figures", ["", *runs], rows, "results"), about]


def differences(runs: Sequence[Run]) -> list[Block]:
    """Settings that all runs have and that set them apart, then what only some methods have."""
    tables = [run.settings for run in runs]
    shared = [n for n in tables[0] if all(n in table for table in tables)]
    apart = [n for n in differing(tables) if n in shared and n != "method" and n not in NOT_HASHED]
    rows = [[n, *(run.settings[n] for run in runs)] for n in apart]
    blocks: list[Block] = [Table("Settings that differ", ["", *runs], rows)] if rows else []
    for run in runs:
        options = [(n, v) for n, v in run.settings.items() if n not in shared]
        if options:
            caption = f"{run.label}: options of its own"
            blocks.append(Table(caption, ["option", "value"], options))
    return blocks or [Note("All settings are the same.")]


def scores(runs: Sequence[Run]) -> list[Block]:
    """Global and local scores over rounds, bytes and MACs, one of the two shown at a time."""
    known = [
        name for name in SCORES
        if any(getattr(row, name) is not None for run in runs for row in run.record.rows)
    ]  # fmt: skip
    if not known:
        return [Note("No round was evaluated.")]
    grids = {scope(name): Grid(_score_figures(runs, name)) for name in known}
    return [Panels(runs[0].record.summary.score, grids)]


def density(runs: Sequence[Run]) -> list[Block]:
    """Density and loss over rounds."""
    kept = series(runs, "density", _rounds)
    if not kept:
        return [Note("No round was finished.")]
    picture = svg.curves(kept, ROUND, Axis("density"), "Density over rounds")
    figures = [Figure(picture, "Density of the model over rounds")]
    loss = series(runs, "loss", _rounds)
    if loss:
        picture = svg.curves(loss, ROUND, Axis("loss"), "Test loss over rounds")
        figures.append(Figure(picture, "Test loss over rounds"))
    return [Grid(figures)]


def layers(runs: Sequence[Run]) -> list[Block]:
    """Density of each layer: in the last evaluation, and over rounds."""
    ends = {r.number: r.record.evaluations[-1].layer_density for r in runs if r.record.evaluations}
    names = list(dict.fromkeys(name for end in ends.values() for name in end))
    if not names:
        return [Note("No layer densities were kept.")]
    rows: list[list[Content]] = []
    for name in names:
        cells = [
            cell(f"{value:.4f}", value, meter=svg.meter(value, 1, run.number), run=run.number,
                 layer=name) if value is not None else units.MISSING
            for run in runs for value in [ends.get(run.number, {}).get(name)]
        ]  # fmt: skip
        rows.append([name, *cells])
    is_dense = {
        run.number: all(d == 1 for e in run.record.evaluations for d in e.layer_density.values())
        for run in runs
    }
    strips = [_strip(run) for run in runs if run.number in ends and not is_dense[run.number]]
    dense = ", ".join(run.label for run in runs if run.number in ends and is_dense[run.number])
    table = Table("Density by layer, last evaluation", ["layer", *runs], rows, "meters")
    note = Note(f"Every layer is dense in every round: {dense}.")
    return [table, Grid(strips), *([note] if dense else [])]


def _strip(run: Run) -> Figure:
    seen = spread(run.record.evaluations, COLUMNS)
    names, rounds = list(seen[-1].layer_density), [str(e.round) for e in seen]
    values = [[round(e.layer_density.get(n, 0.0), 4) for e in seen] for n in names]
    title = f"{run.label}: density of {len(names)} layers over {len(rounds)} rounds"
    picture = svg.heat_map(names, rounds, values, title, ("", "round", "density"))
    return Figure(picture, ": density of each layer over rounds", run)


def _score_figures(runs: Sequence[Run], name: str) -> list[Figure]:
    kind = runs[0].record.summary.score
    what = f"{scope(name)} {kind}"
    height = Axis(what, units.number if kind == "R2" else percent_axis)
    axes: tuple[tuple[Axis, Callable[[Run], list[float]], str], ...] = (
        (ROUND, _rounds, "over rounds"),
        (Axis("sent both ways, MB (log)", is_log=True), megabytes, "against bytes sent"),
        (Axis("MACs, zeros skipped (log)", units.large, is_log=True), _macs, "against computation"),
    )
    figures = []
    for axis, places, words in axes:
        caption = f"{what[0].upper()}{what[1:]} {words}"
        drawn = series(runs, name, places, is_positive=axis.is_log)
        absent = [r.label for r in runs if r.number not in {s.run for s in drawn}]
        why = f" (not drawn: {', '.join(absent)})" if absent else ""
        if drawn:
            figures.append(Figure(svg.curves(drawn, axis, height, caption), caption + why))
    return figures


def series(
    runs: Sequence[Run],
    field: str | Callable[[Run], str],
    places: Callable[[Run], list[float]],
    *,
    is_positive: bool = False,
) -> list[Series]:
    """A field of the rows of each run that has some, over rounds or what was spent."""
    most, curves = min(max(POINTS // len(runs), 24), 160), []
    for run in runs:
        name = field if isinstance(field, str) else field(run)
        points = [
            Point(x, y, _tip(run, row, name, y, x if is_positive else None, places))
            for row, x in zip(run.record.rows, places(run), strict=True)
            if (y := getattr(row, name)) is not None and (x > 0 or not is_positive)
        ]
        if points:
            curves.append(Series(run.number, thinned(points, [p.y for p in points], most)))
    return curves


def _tip(
    run: Run, row: Row, name: str, y: float, x: float | None, places: Callable[..., Any]
) -> str:
    is_score = name.endswith("accuracy")
    value = units.score(y, run.record.summary.score) if is_score else f"{y:.4f}"
    which = "local " if name == "local_accuracy" else ""
    text = f"{run.label}, round {row.round}: {which}{value}"
    if x is None:
        return text
    return f"{text} at {units.size(1e6 * x) if places is megabytes else f'{units.large(x)}MACs'}"


def _rounds(run: Run) -> list[float]:
    return [row.round for row in run.record.rows]


def megabytes(run: Run) -> list[float]:
    return [b / 1e6 for b in spent(run.record.rows, AXES["bytes"])]


def _macs(run: Run) -> list[float]:
    return [float(m) for m in spent(run.record.rows, AXES["macs_ideal"])]


def percent_axis(value: float) -> str:
    return f"{100 * value:.4g}%"
