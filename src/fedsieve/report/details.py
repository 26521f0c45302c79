"""The sections of a page that look inside: clients, partition, bytes, supports, configuration."""

from collections.abc import Sequence
from statistics import median

from fedsieve.core.errors import FedsieveError
from fedsieve.drawing import svg, units
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
from fedsieve.report.markup import Block, Content, Figure, Grid, Listing, Note, Table, cell
from fedsieve.report.sections import percent_axis

MAX_CLIENTS, MAX_CLASSES, MAX_TENSORS = 60, 100, 200
PARTS = ("header", "mask", "value")
KEYS = (("header", "header"), ("masks", "mask"), ("values", "value"), ("papers' formula", "mark"))


def clients(runs: Sequence[Run]) -> list[Block]:
    """How the score of the last evaluation spreads over clients."""
    figures, rows = [], list[list[Content]]()
    for run in runs:
        last = run.record.evaluations[-1:]
        values = [v for evaluation in last for v in evaluation.client_accuracy if v is not None]
        if not values:
            continue
        kind = run.record.summary.score
        text = units.number if kind == "R2" else percent_axis
        title = f"{run.label}: {kind} of {len(values)} clients"
        picture = svg.columns(*histogram(values), Axis(kind, text), run.number, title)
        figures.append(Figure(picture, f", {len(values)} clients", run))
        points = zip(QUANTILES, quantiles(values), strict=True)
        cells = [cell(units.score(v, kind), v, run=run.number, quantile=q) for q, v in points]
        rows.append([run, *cells])
    if not figures:
        return [Note("No round was evaluated.")]
    head = ["", "lowest", "10 %", "25 %", "median", "75 %", "90 %", "highest"]
    return [Grid(figures), Table("Quantiles over clients, last evaluation", head, rows)]


def partition(runs: Sequence[Run], *, is_wanted: bool) -> list[Block]:
    """Which client holds how many examples of which class, once for every different split."""
    if not is_wanted:
        return [Note("Left out on request.")]
    first = {run.record.summary.partition_fingerprint: run for run in reversed(runs)}
    return [Grid([_split(run) for run in sorted(first.values(), key=lambda run: run.number)])]


def _split(run: Run) -> Figure:
    s, clients = run.record.summary, shares(run.record)
    split = f"{s.partition}, {s.num_clients} clients [{s.partition_fingerprint}]"
    caption = f"{s.dataset}: {split}"
    if isinstance(clients, str):
        return Figure(None, caption, why=clients)
    shown = spread(clients, MAX_CLIENTS)
    classes = min(len(shown[0].classes), MAX_CLASSES)
    values = [share.classes[:classes] if classes else (share.train,) for share in shown]
    columns = [str(i) for i in range(classes)] or ["all"]
    sizes = sorted(share.train for share in clients)
    title = f"Training examples of each class held by {len(shown)} of {len(clients)} clients"
    words = ("client", "class" if classes else "examples", "examples")
    names = [str(share.client) for share in shown]
    some = f" Drawn: {len(shown)}, evenly spread." if len(shown) < len(clients) else ""
    told = f"{sizes[0]} to {sizes[-1]} examples a client, median {median(sizes):.9g}."
    picture = svg.heat_map(names, columns, values, title, words, digits=0)
    return Figure(picture, f"{caption}. {told}{some}")


def byte_parts(runs: Sequence[Run]) -> list[Block]:
    """What the bytes of all messages were, by direction, and by tensor where messages were kept."""
    bars, rows = [], list[list[Content]]()
    for run in runs:
        for direction, sums in run.sent.items():
            parts = [(name, float(getattr(sums, f"{name}_bytes"))) for name in PARTS]
            bars.append(Bar(f"{run.label}, {direction}", parts, float(sums.paper_bytes)))
            cells = [
                cell(units.size(value), value, run=run.number, direction=direction, part=name)
                for name in (*PARTS, "total", "paper")
                for value in [getattr(sums, f"{name}_bytes")]
            ]
            rows.append([run, direction, *cells])
    picture = svg.stacked(bars, units.size, "Bytes of all messages by part and direction")
    head = ["", "way", "header", "masks", "values", "all", "papers' formula"]
    tensors = [block for run in runs for block in _tensors(run)]
    bars_figure = Figure(picture, "Where the bytes went", keys=KEYS)
    return [Grid([bars_figure]), Table("Bytes of all messages", head, rows), *tensors]


def supports(runs: Sequence[Run]) -> list[Block]:
    """How far the supports of the global model in different rounds are the same."""
    figures, absent = [], []
    for run in runs:
        rounds, values = overlap(run.record.path)
        if len(rounds) < 2:
            absent.append(run.label)
            continue
        names, low = [str(r) for r in rounds], min(v for line in values for v in line)
        title = f"{run.label}: overlap of the supports of {len(rounds)} rounds, {low:.3f} to 1"
        words = ("round", "round", "overlap")
        low = int(low * 100) / 100
        picture = svg.heat_map(names, names, values, title, words, low=low)
        pairs = [values[i][i + 1] for i in range(len(values) - 1)]
        told = f"From one kept round to the next: {min(pairs):.3f} to {max(pairs):.3f}."
        figures.append(Figure(picture, f": soft IoU Σ min / Σ max of gates. {told}", run))
    why = f"No supports were kept for {', '.join(absent)}: dense, personal or too few rounds."
    return [Grid(figures), *([Note(why)] if absent else [])]


def configuration(runs: Sequence[Run]) -> list[Block]:
    """The configuration of every run, to copy and run again."""
    is_open = len(runs) == 1
    return [Listing(r, f"config-{i}", r.config_text, is_open) for i, r in enumerate(runs)]


def versions(runs: Sequence[Run]) -> list[Block]:
    tables = [run.record.summary.versions for run in runs]
    rows: list[list[Content]] = [
        [name, *(cell(v.get(name, units.MISSING), v.get(name), run=i, version=name)
                 for i, v in enumerate(tables))]
        for name in dict.fromkeys(name for table in tables for name in table)
    ]  # fmt: skip
    return [Table("Versions", ["", *runs], rows)]


def _tensors(run: Run) -> list[Block]:
    try:
        count, tensors = tensor_bytes(run.record.path)
    except FedsieveError as error:
        return [Note(f"{run.label}: kept messages cannot be read: {error}")]
    if not tensors:
        return []
    largest = max(t.mask_bytes + t.value_bytes for t in tensors)
    rows = [_tensor_row(run, t, largest) for t in tensors[:MAX_TENSORS]]
    head = ["tensor", "way", "values", "sent", "bytes", "bits each", "limit, bits"]
    caption = f"{run.label}: bytes by tensor, means over {count} kept messages"
    more = len(tensors) - len(rows)
    left_out = [Note(f"{more} more tensors are left out.")] if more else []
    return [Table(caption, head, rows, "meters"), *left_out]


def _tensor_row(run: Run, tensor: TensorBytes, largest: float) -> list[Content]:
    spent, each = tensor.mask_bytes + tensor.value_bytes, max(tensor.sent, 1)
    return [
        f"{tensor.field}: {tensor.tensor}",
        tensor.direction,
        cell(f"{tensor.size:,}", tensor.size),
        cell(f"{tensor.sent:,.0f}", tensor.sent),
        cell(units.size(spent), spent, meter=svg.meter(spent, largest, run.number)),
        f"{8 * spent / each:.2f}",
        f"{8 * tensor.limit_bytes / each:.2f}",
    ]
