"""The sections of a page that follow a run over rounds: summary, scores, cost, density."""

from collections.abc import Callable, Sequence
from typing import Any

from fedsieve.drawing import html, svg
from fedsieve.drawing.html import Markup, cell, note, tag
from fedsieve.drawing.svg import Axis, Point, Series
from fedsieve.jobs.settings import INDIFFERENT
from fedsieve.metrics.rows import Row
from fedsieve.report.figures import Run, differing, running, spread, thinned

POINTS = 400  # in one picture, over all runs
COLUMNS = 60  # rounds across a heat map
ROUND = Axis("round", is_whole=True)


def _plain(value: Any) -> str:
    return html.MISSING if value is None else str(value)


def _fixed(value: Any) -> str:
    return html.MISSING if value is None else f"{value:.4f}"


def _figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items()) or html.MISSING


def _count(value: int | None) -> str:
    return html.MISSING if value is None else html.large(value)


Better = Callable[..., Any] | None
LINES: tuple[tuple[str, str, Callable[[Any], str] | None, Better], ...] = (
    ("method", "method", _plain, None),
    ("dataset", "data set", _plain, None),
    ("model", "model", _plain, None),
    ("partition", "partition", _plain, None),
    ("partition_fingerprint", "partition fingerprint", _plain, None),
    ("seed", "seed", _plain, None),
    ("num_clients", "clients", _plain, None),
    ("rounds", "rounds", _plain, None),
    ("stopped", "ended", _plain, None),
    ("score", "score", _plain, None),
    ("global_accuracy", "global score, final", None, max),
    ("best_global_accuracy", "global score, best", None, max),
    ("local_accuracy", "local score, final", None, max),
    ("best_local_accuracy", "local score, best", None, max),
    ("seen_accuracy", "local score of clients that have trained", None, max),
    ("loss", "test loss, final", _fixed, min),
    ("density", "density", _fixed, min),
    ("local_density", "density of all clients' own models", _fixed, min),
    ("layer_mean_density", "density, mean over layers", _fixed, min),
    ("deployed_values", "values of the model when cut", _count, min),
    ("deployed_macs", "MACs of its forward pass", _count, min),
    ("true_discovery", "support that is in the planted truth", _fixed, max),
    ("truth_recall", "planted truth that was found", _fixed, max),
    ("values", "the method's own figures, last round", _figures, None),
    ("", "sent, both ways", html.size, min),
    ("", "by the papers' formula, both ways", html.size, None),
    ("up_bytes", "sent up", html.size, min),
    ("down_bytes", "sent down", html.size, min),
    ("up_paper_bytes", "up, by the papers' formula", html.size, None),
    ("down_paper_bytes", "down, by the papers' formula", html.size, None),
    ("flops_dense", "MACs, dense", html.large, None),
    ("flops_ideal", "MACs, every zero skipped", html.large, min),
    ("flops_realisable", "MACs, whole structures skipped", html.large, min),
    ("failed", "failed replies", _plain, None),
    ("seconds", "wall time", html.duration, None),
    ("model_hash", "model hash", _plain, None),
)  # fmt: skip


def name_of(run: Run) -> Markup:
    """A run's label beside its colour and dash."""
    words = Markup(html.escape(run.label).replace("_", "_<wbr/>"))
    return tag("span", svg.swatch(run.number), tag("span", words), class_="label")


def figure(picture: Markup, caption: object) -> Markup:
    return tag("figure", tag("figcaption", caption), picture)


def summary(runs: Sequence[Run]) -> Markup:
    """Every figure of result.json, exact in `data-value`; the best of several runs is marked."""
    rows: list[list[object]] = []
    for field, words, text, better in LINES:
        values = [_value(run, field, words) for run in runs]
        known = [v for v in values if v is not None]
        best = better(known) if better and known and len(set(values)) > 1 else None
        cells = [
            cell(
                text(value) if text else html.score(value, run.record.summary.score),
                value,
                data_run=run.number,
                data_field=field or None,
                class_="best" if best is not None and value == best else None,
            )
            for run, value in zip(runs, values, strict=True)
        ]
        rows.append([words, *cells])
    head: list[object] = ["", *(name_of(run) for run in runs)]
    told = "Bold: the best of the runs. " if len(runs) > 1 else ""
    about = note(
        told, "Global is the score of one model on all test data, local the mean over "
        "clients of the score on their own. MB = 10⁶ bytes; MACs are those of training.",
    )  # fmt: skip
    return html.join(html.table(head, rows, "Final figures", "results"), about)


def _value(run: Run, field: str, words: str) -> Any:
    s = run.record.summary
    if field:
        return getattr(s, field)
    if words.startswith("sent"):
        return s.up_bytes + s.down_bytes
    return s.up_paper_bytes + s.down_paper_bytes


def differences(runs: Sequence[Run]) -> Markup:
    """Settings that all runs have and that set them apart, then what only some methods have."""
    tables = [run.settings for run in runs]
    shared = [n for n in tables[0] if all(n in table for table in tables)]
    apart = [n for n in differing(tables) if n in shared and n != "method" and n not in INDIFFERENT]
    rows: list[list[object]] = [[n, *(run.settings[n] for run in runs)] for n in apart]
    head: list[object] = ["", *(name_of(run) for run in runs)]
    found = [html.table(head, rows, "Settings that differ")] if rows else []
    for run in runs:
        own = {n: v for n, v in run.settings.items() if n not in shared}
        if own:
            lines: list[list[object]] = [[name, value] for name, value in own.items()]
            found.append(html.table(["option", "value"], lines, f"{run.label}: options of its own"))
    return html.join(*found) if found else note("All settings are the same.")


def scores(runs: Sequence[Run]) -> Markup:
    """Global and local scores over rounds, bytes and MACs, one of the two shown at a time."""
    known = [
        name for name in ("global_accuracy", "local_accuracy")
        if any(getattr(row, name) is not None for run in runs for row in run.record.rows)
    ]  # fmt: skip
    if not known:
        return note("No round was evaluated.")
    choices, panels = [], []
    for name in known:
        which = name.removesuffix("_accuracy")
        kind = runs[0].record.summary.score
        choices.append(
            tag("button", f"{which} {kind}", type="button", class_="choice", data_show=which,
                aria_pressed="true" if name == known[0] else "false")
        )  # fmt: skip
        panels.append(tag("div", *_score_figures(runs, name), class_="grid", data_panel=which))
    bar = tag("div", *choices, class_="choices", role="group", aria_label="which score")
    return html.join(bar if len(known) > 1 else None, *panels)


def density(runs: Sequence[Run]) -> Markup:
    """Density and loss over rounds."""
    kept = _series(runs, "density", _rounds)
    if not kept:
        return note("No round was finished.")
    figures = [figure(svg.curves(kept, ROUND, Axis("density"), "Density over rounds"),
                      "Density of the model over rounds")]  # fmt: skip
    loss = _series(runs, "loss", _rounds)
    if loss:
        picture = svg.curves(loss, ROUND, Axis("loss"), "Test loss over rounds")
        figures.append(figure(picture, "Test loss over rounds"))
    return tag("div", *figures, class_="grid")


def layers(runs: Sequence[Run]) -> Markup:
    """Density of each layer: in the last evaluation, and over rounds."""
    ends = {r.number: r.record.evaluations[-1].layer_density for r in runs if r.record.evaluations}
    names = list(dict.fromkeys(name for end in ends.values() for name in end))
    if not names:
        return note("No layer densities were kept.")
    rows: list[list[object]] = []
    for name in names:
        cells = [
            cell(
                html.join(f"{value:.4f}", svg.meter(value, 1, run.number)), value,
                data_run=run.number, data_layer=name,
            ) if value is not None else html.MISSING
            for run in runs for value in [ends.get(run.number, {}).get(name)]
        ]  # fmt: skip
        rows.append([name, *cells])
    head: list[object] = ["layer", *(name_of(run) for run in runs)]
    is_dense = {
        run.number: all(d == 1 for e in run.record.evaluations for d in e.layer_density.values())
        for run in runs
    }
    strips = [_strip(run) for run in runs if run.number in ends and not is_dense[run.number]]
    dense = ", ".join(run.label for run in runs if run.number in ends and is_dense[run.number])
    return html.join(
        html.table(head, rows, "Density by layer, last evaluation", "meters"),
        tag("div", *strips, class_="grid"),
        note(f"Every layer is dense in every round: {dense}.") if dense else None,
    )


def _strip(run: Run) -> Markup:
    seen = spread(run.record.evaluations, COLUMNS)
    names, rounds = list(seen[-1].layer_density), [str(e.round) for e in seen]
    values = [[round(e.layer_density.get(n, 0.0), 4) for e in seen] for n in names]
    caption = html.join(name_of(run), ": density of each layer over rounds")
    title = f"{run.label}: density of {len(names)} layers over {len(rounds)} rounds"
    return figure(svg.heat_map(names, rounds, values, title, ("", "round", "density")), caption)


def _score_figures(runs: Sequence[Run], name: str) -> list[Markup]:
    kind = runs[0].record.summary.score
    what = f"{name.removesuffix('_accuracy')} {kind}"
    height = Axis(what, html.number if kind == "R2" else percent_axis)
    axes: tuple[tuple[Axis, Callable[[Run], list[float]], str], ...] = (
        (ROUND, _rounds, "over rounds"),
        (Axis("sent both ways, MB (log)", is_log=True), _megabytes, "against bytes sent"),
        (Axis("MACs, zeros skipped (log)", html.large, is_log=True), _macs, "against computation"),
    )
    figures = []
    for axis, places, words in axes:
        caption = f"{what[0].upper()}{what[1:]} {words}"
        drawn = _series(runs, name, places, is_positive=axis.is_log)
        absent = [r.label for r in runs if r.number not in {s.run for s in drawn}]
        why = f" (not drawn: {', '.join(absent)})" if absent else ""
        if drawn:
            figures.append(figure(svg.curves(drawn, axis, height, caption), caption + why))
    return figures


def _series(
    runs: Sequence[Run],
    name: str,
    places: Callable[[Run], list[float]],
    *,
    is_positive: bool = False,
) -> list[Series]:
    most, found = min(max(POINTS // len(runs), 24), 160), []
    for run in runs:
        points = [
            Point(x, y, _tip(run, row, name, y, x if is_positive else None, places))
            for row, x in zip(run.record.rows, places(run), strict=True)
            if (y := getattr(row, name)) is not None and (x > 0 or not is_positive)
        ]
        if points:
            found.append(Series(run.number, thinned(points, [p.y for p in points], most)))
    return found


def _tip(
    run: Run, row: Row, name: str, y: float, x: float | None, places: Callable[..., Any]
) -> str:
    is_score = name.endswith("accuracy")
    value = html.score(y, run.record.summary.score) if is_score else f"{y:.4f}"
    text = f"{run.label}, round {row.round}: {value}"
    if x is None:
        return text
    return f"{text} at {f'{x:.4g} MB' if places is _megabytes else f'{html.large(x)}MACs'}"


def _rounds(run: Run) -> list[float]:
    return [row.round for row in run.record.rows]


def _megabytes(run: Run) -> list[float]:
    return [b / 1e6 for b in running(run.record, "up_bytes", "down_bytes")]


def _macs(run: Run) -> list[float]:
    return [float(m) for m in running(run.record, "flops_ideal")]


def percent_axis(value: float) -> str:
    return f"{100 * value:.4g}%"
