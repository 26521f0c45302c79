"""The top of a page: the answer, the one curve that matters, and one table."""

import re
from collections.abc import Sequence

from fedsieve.drawing import html, svg
from fedsieve.drawing.html import Markup, cell, note, tag
from fedsieve.drawing.svg import Axis, Point, Series
from fedsieve.report.answer import answer, percent
from fedsieve.report.compare import candidates, group, mismatches
from fedsieve.report.figures import Run, running, thinned
from fedsieve.report.sections import name_of, percent_axis

UNIT = re.compile(r"(\d) (B|kB|MB|GB|%|points)")
POINTS = 400  # in the picture, over all runs


def overview(runs: Sequence[Run]) -> Markup:
    """What most readers come for, on one screen."""
    side = tag("div", _table(runs), _remarks(runs), class_="side")
    return tag("section", _answer(runs), tag("div", _curve(runs), side, class_="pair"),
               id="answer", aria_label="The answer")  # fmt: skip


def _answer(runs: Sequence[Run]) -> Markup:
    groups, _ = group([run.record for run in runs])
    if mismatches(groups):
        return tag("p", "These runs are not on the same data: no winner is named.", class_="answer")
    kind = runs[0].record.summary.score
    found, base = candidates(groups)
    told = answer(found, base, kind, lambda v: html.score(v, kind))
    return tag("p", UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", told), class_="answer")


def _curve(runs: Sequence[Run]) -> Markup:
    kind = runs[0].record.summary.score
    drawn = [(run, _points(run)) for run in runs]
    sent = [p.x for _, points in drawn for p in points]
    caption = f"{kind[0].upper()}{kind[1:]} over bytes really sent, up and down together"
    if not sent:
        return tag("figure", tag("figcaption", caption), note("No bytes were sent, or no round "
                   "was evaluated."))  # fmt: skip
    series = []
    for run, points in drawn:
        shown = points or _level(run, min(sent), max(sent))
        most = min(max(POINTS // len(runs), 24), 160)
        if shown:
            series.append(Series(run.number, thinned(shown, [p.y for p in shown], most)))
    height = Axis(kind, html.number if kind == "R2" else percent_axis)
    across = Axis("MB sent, both ways (log)", is_log=True)
    return tag("figure", tag("figcaption", caption), svg.curves(series, across, height, caption))


def _points(run: Run) -> list[Point]:
    summary = run.record.summary
    which = "local " if summary.is_local else ""
    sent = running(run.record, "sent_bytes")
    return [
        Point(x / 1e6, y, f"{run.label}, round {row.round}: {which}{html.score(y, summary.score)} "
              f"at {html.size(x)}")
        for row, x in zip(run.record.rows, sent, strict=True)
        if (y := getattr(row, summary.score_field)) is not None and x > 0
    ]  # fmt: skip


def _level(run: Run, low: float, high: float) -> list[Point]:
    """The score of a run that sends nothing has no place on the axis: a line across."""
    summary = run.record.summary
    value = summary.main_score
    if value is None or low == high:
        return []
    tip = f"{run.label}, which sends nothing: {html.score(value, summary.score)}"
    return [Point(x, value, tip) for x in (low, high)]


def _table(runs: Sequence[Run]) -> Markup:
    groups, _ = group([run.record for run in runs])
    found, base = candidates(groups)
    whole = next((c.sent for c in found if c.label == base), 0)
    scores = [run.record.summary.main_score for run in runs]
    top = max((s for s in scores if s is not None), default=None)
    least = min(run.record.summary.sent_bytes for run in runs)
    several = len(runs) > 1
    rows: list[list[object]] = []
    for run, value in zip(runs, scores, strict=True):
        s, sent = run.record.summary, run.record.summary.sent_bytes
        mark = tag("sup", "†", title="local") if s.is_local else None
        best = "best" if several and value is not None and value == top else None
        thrifty = "best" if several and sent == least else None
        rows.append([
            name_of(run),
            cell(html.join(html.score(value, s.score), mark), value, class_=best),
            cell(html.size(sent), sent, class_=thrifty),
            *([cell(percent(sent / whole), sent / whole)] if whole else []),
            cell(html.share(s.density), s.density, class_="wide"),
        ])  # fmt: skip
    kind = runs[0].record.summary.score
    head: list[object] = ["", kind, "sent", *([f"of {base}"] if whole else [])]
    head.append(tag("th", "density", scope="col", class_="wide"))
    return html.table(head, rows, "Results", "overview")


def _remarks(runs: Sequence[Run]) -> Markup:
    told = [
        "Sent: all messages, up and down together. Density: weights that are not 0. ",
    ]
    if len(runs) > 1:
        told.append("Bold: the best of the runs. ")
    if any(run.record.summary.is_local for run in runs):
        told.append("† There is no global model: the mean over clients of their own models. ")
    return note(*told)
