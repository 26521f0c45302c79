"""The top of a page: the answer, the one curve that matters, and one table."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fedsieve.drawing import svg, units
from fedsieve.drawing.svg import Axis, Point, Series
from fedsieve.report.answer import answer, percent
from fedsieve.report.compare import candidates, group, mismatches
from fedsieve.report.figures import Run
from fedsieve.report.markup import Cell, Content, Figure, Note, Table, cell
from fedsieve.report.sections import megabytes, percent_axis, series

UNIT = re.compile(r"(\d) (B|kB|MB|GB|%|points)")


class Overview(NamedTuple):
    """What most readers come for, on one screen."""

    answer: str
    curve: Figure
    table: Table
    remarks: Note


def overview(runs: Sequence[Run]) -> Overview:
    return Overview(_answer(runs), _curve(runs), _table(runs), _remarks(runs))


def _answer(runs: Sequence[Run]) -> str:
    groups, _ = group([run.record for run in runs])
    if mismatches(groups):
        return "These runs are not on the same data: no winner is named."
    kind = runs[0].record.summary.score
    told = answer(*candidates(groups), kind, lambda v: units.score(v, kind))
    return UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", told)


def _curve(runs: Sequence[Run]) -> Figure:
    kind = runs[0].record.summary.score
    curves = series(runs, lambda r: r.record.summary.score_field, megabytes, is_positive=True)
    sent = [p.x for curve in curves for p in curve.points]
    caption = f"{kind[0].upper()}{kind[1:]} over bytes really sent, up and down together"
    if not sent:
        return Figure(None, caption, why="No bytes were sent, or no round was evaluated.")
    silent = [run for run in runs if run.number not in {curve.run for curve in curves}]
    levels = [Series(run.number, _level(run, min(sent), max(sent))) for run in silent]
    drawn = sorted([*curves, *(s for s in levels if s.points)], key=lambda s: s.run)
    height = Axis(kind, units.number if kind == "R2" else percent_axis)
    across = Axis("MB sent, both ways (log)", is_log=True)
    return Figure(svg.curves(drawn, across, height, caption), caption)


def _level(run: Run, low: float, high: float) -> list[Point]:
    """The score of a run that sends nothing has no place on the axis: a line across."""
    summary = run.record.summary
    value = summary.main_score
    if value is None or low == high:
        return []
    tip = f"{run.label}, which sends nothing: {units.score(value, summary.score)}"
    return [Point(x, value, tip) for x in (low, high)]


def _table(runs: Sequence[Run]) -> Table:
    groups, _ = group([run.record for run in runs])
    known, base = candidates(groups)
    whole = next((c.sent for c in known if c.label == base), 0)
    scores = [run.record.summary.main_score for run in runs]
    top = max((s for s in scores if s is not None), default=None)
    least = min(run.record.summary.sent_bytes for run in runs)
    several = len(runs) > 1
    rows: list[list[Content]] = []
    for run, value in zip(runs, scores, strict=True):
        s, sent = run.record.summary, run.record.summary.sent_bytes
        best = "best" if several and value is not None and value == top else None
        thrifty = "best" if several and sent == least else None
        rows.append([
            run,
            cell(units.score(value, s.score), value, best)._replace(is_local=s.is_local),
            cell(units.size(sent), sent, thrifty),
            *([cell(percent(sent / whole), sent / whole)] if whole else []),
            cell(units.share(s.density), s.density, "wide"),
        ])  # fmt: skip
    kind = runs[0].record.summary.score
    head = ["", kind, "sent", *([f"of {base}"] if whole else [])]
    return Table("Results", [*head, Cell("density", {"class": "wide"})], rows, "overview")


def _remarks(runs: Sequence[Run]) -> Note:
    told = "Sent: all messages, up and down together. Density: weights that are not 0. "
    if len(runs) > 1:
        told += "Bold: the best of the runs. "
    if any(run.record.summary.is_local for run in runs):
        told += "† There is no global model: the mean over clients of their own models. "
    return Note(told)
