"""The sections of a page that look inside: clients, partition, bytes, supports, configuration."""

from collections.abc import Sequence
from statistics import median

from fedsieve.core.errors import FedsieveError
from fedsieve.drawing import html, svg
from fedsieve.drawing.html import Markup, cell, note, tag
from fedsieve.drawing.svg import Axis, Bar
from fedsieve.report.figures import (
    QUANTILES,
    Run,
    TensorBytes,
    histogram,
    overlap,
    quantiles,
    shares,
    spread,
    tensor_bytes,
)
from fedsieve.report.sections import figure, name_of

MOST_CLIENTS, MOST_CLASSES, MOST_TENSORS = 60, 100, 200
PARTS = ("header", "mask", "value")


def clients(runs: Sequence[Run]) -> Markup:
    """How the score of the last evaluation spreads over clients."""
    figures, rows = [], list[list[object]]()
    for run in runs:
        last = run.record.evaluations[-1:]
        values = [v for evaluation in last for v in evaluation.client_accuracy if v is not None]
        if not values:
            continue
        kind = run.record.summary.score
        text = html.number if kind == "R2" else lambda v: f"{100 * v:.4g}%"
        title = f"{run.label}: {kind} of {len(values)} clients"
        picture = svg.columns(*histogram(values), Axis(kind, text), run.number, title)
        figures.append(figure(picture, html.join(name_of(run), f", {len(values)} clients")))
        points = zip(QUANTILES, quantiles(values), strict=True)
        cells = [cell(html.score(v, kind), v, data_run=run.number, data_quantile=q)
                 for q, v in points]  # fmt: skip
        rows.append([name_of(run), *cells])
    if not figures:
        return note("No round was evaluated.")
    names = ("lowest", "10 %", "25 %", "median", "75 %", "90 %", "highest")
    head: list[object] = ["", *names]
    table = html.table(head, rows, "Quantiles over clients, last evaluation")
    return html.join(tag("div", *figures, class_="grid"), table)


def partition(runs: Sequence[Run], *, is_wanted: bool) -> Markup:
    """Which client holds how many examples of which class, once for every different split."""
    if not is_wanted:
        return note("Left out on request.")
    first = {run.record.summary.partition_fingerprint: run for run in reversed(runs)}
    figures = []
    for fingerprint, run in sorted(first.items(), key=lambda item: item[1].number):
        s, found = run.record.summary, shares(run.record)
        caption = f"{s.dataset}: {s.partition}, {s.num_clients} clients [{fingerprint}]"
        if isinstance(found, str):
            figures.append(tag("figure", tag("figcaption", caption), note(found)))
            continue
        shown = spread(found, MOST_CLIENTS)
        classes = min(len(shown[0].classes), MOST_CLASSES)
        values = [share.classes[:classes] if classes else (share.train,) for share in shown]
        columns = [str(i) for i in range(classes)] or ["all"]
        sizes = sorted(share.train for share in found)
        title = f"Training examples of each class held by {len(shown)} of {len(found)} clients"
        words = ("client", "class" if classes else "examples", "examples")
        picture = svg.heat_map(
            [str(share.client) for share in shown], columns, values, title, words, digits=0
        )
        some = f" Drawn: {len(shown)}, evenly spread." if len(shown) < len(found) else ""
        told = f"{sizes[0]} to {sizes[-1]} examples a client, median {median(sizes):.9g}."
        figures.append(html.join(figure(picture, f"{caption}. {told}{some}")))
    return tag("div", *figures, class_="grid")


def byte_parts(runs: Sequence[Run]) -> Markup:
    """What the bytes of all messages were, by direction, and by tensor where messages were kept."""
    bars, rows = [], list[list[object]]()
    for run in runs:
        for direction, sums in run.sent.items():
            parts = [(name, float(getattr(sums, f"{name}_bytes"))) for name in PARTS]
            bars.append(Bar(f"{run.label}, {direction}", parts, float(sums.paper_bytes)))
            cells = [
                cell(html.size(value), value, data_run=run.number, data_direction=direction,
                     data_part=name)
                for name in (*PARTS, "total", "paper")
                for value in [getattr(sums, f"{name}_bytes")]
            ]  # fmt: skip
            rows.append([name_of(run), direction, *cells])
    names = ("header", "masks", "values", "all", "papers' formula")
    key = tag(
        "p", *(tag("span", name, class_=f"key {part}")
               for name, part in zip(names, (*PARTS, "", "mark"), strict=True) if part),
        class_="keys",
    )  # fmt: skip
    picture = svg.stacked(bars, html.size, "Bytes of all messages by part and direction")
    head: list[object] = ["", "way", *names]
    table = html.table(head, rows, "Bytes of all messages")
    bars_card = tag("figure", tag("figcaption", "Where the bytes went", key), picture)
    return html.join(tag("div", bars_card, class_="grid"), table, *(_tensors(run) for run in runs))


def supports(runs: Sequence[Run]) -> Markup:
    """How far the supports of the global model in different rounds are the same."""
    figures, absent = [], []
    for run in runs:
        rounds, values = overlap(run.record.path)
        if len(rounds) < 2:
            absent.append(run.label)
            continue
        caption = html.join(name_of(run), ": soft IoU Σ min / Σ max of gates")
        names, low = [str(r) for r in rounds], min(v for line in values for v in line)
        title = f"{run.label}: overlap of the supports of {len(rounds)} rounds, {low:.3f} to 1"
        words = ("round", "round", "overlap")
        low = int(low * 100) / 100
        picture = svg.heat_map(names, names, values, title, words, low=low)
        pairs = [values[i][i + 1] for i in range(len(values) - 1)]
        told = f"From one kept round to the next: {min(pairs):.3f} to {max(pairs):.3f}."
        figures.append(figure(picture, html.join(caption, ". ", told)))
    why = f"No supports were kept for {', '.join(absent)}: dense, personal or too few rounds."
    return html.join(tag("div", *figures, class_="grid"), note(why) if absent else None)


def configuration(runs: Sequence[Run]) -> Markup:
    """The configuration of every run, to copy and run again."""
    return html.join(
        *(
            tag(
                "details",
                tag("summary", name_of(run)),
                tag("button", "Copy", type="button", class_="copy", data_copy=f"config-{i}"),
                tag("pre", tag("code", run.config_text, id=f"config-{i}"), tabindex=0),
                open=len(runs) == 1,
            )
            for i, run in enumerate(runs)
        )
    )


def versions(runs: Sequence[Run]) -> Markup:
    tables = [run.record.summary.versions for run in runs]
    rows: list[list[object]] = [
        [name, *(cell(v.get(name, html.MISSING), v.get(name), data_run=i, data_version=name)
                 for i, v in enumerate(tables))]
        for name in dict.fromkeys(name for table in tables for name in table)
    ]  # fmt: skip
    return html.table(["", *(name_of(run) for run in runs)], rows, "Versions")


def _tensors(run: Run) -> Markup | None:
    try:
        count, found = tensor_bytes(run.record.path)
    except FedsieveError as error:
        return note(run.label, ": kept messages cannot be read: ", error)
    if not found:
        return None
    largest = max(t.mask_bytes + t.value_bytes for t in found)
    rows = [_tensor_row(run, t, largest) for t in found[:MOST_TENSORS]]
    head: list[object] = ["tensor", "way", "values", "sent", "bytes", "bits each", "limit, bits"]
    caption = f"{run.label}: bytes by tensor, means over {count} kept messages"
    more = len(found) - len(rows)
    return html.join(
        html.table(head, rows, caption, "meters"),
        note(f"{more} more tensors are left out.") if more else None,
    )


def _tensor_row(run: Run, tensor: TensorBytes, largest: float) -> list[object]:
    spent, each = tensor.mask_bytes + tensor.value_bytes, max(tensor.sent, 1)
    return [
        f"{tensor.field}: {tensor.tensor}",
        tensor.direction,
        cell(f"{tensor.size:,}", tensor.size),
        cell(f"{tensor.sent:,.0f}", tensor.sent),
        cell(html.join(html.size(spent), svg.meter(spent, largest, run.number)), spent),
        f"{8 * spent / each:.2f}",
        f"{8 * tensor.limit_bytes / each:.2f}",
    ]
