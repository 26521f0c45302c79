"""The tables of docs/results/vardrop.md."""

from pathlib import Path

from fedsieve.recipes import results
from fedsieve.recipes.papers import vardrop
from fedsieve.recipes.recipe import find
from tables.common import Line, at, by_row, markdown


def _vardrop(name: str, stored: Path) -> dict[str, list[Line]]:
    return by_row(results.read(stored / name / "small.jsonl"))


def _gib(line: Line, name: str) -> float:
    """Of one device."""
    return float(line["figures"][name]) / int(line["settings"]["clients"]) / 2**30


def _kept(line: Line) -> list[str]:
    figures = line["figures"]
    return [f"{100 * figures['global_accuracy']:.2f} %", f"{100 * figures['density']:.1f} %"]


def vardrop_random(stored: Path) -> str:
    """Each seed with its volume, also as dense rounds that send as much."""
    recipe, runs, rows = find("vardrop_random"), _vardrop("vardrop_random", stored), []
    for row in recipe.rows:
        length, is_dense = recipe.settings(row, "small"), row.label.endswith("dense")
        words = "" if is_dense else f", {length['warmup']} of them dense"
        label = f"{row.label}, {length['rounds']} rounds{words}"
        for line in runs[row.label]:
            volume, sent = _gib(line, "paper_bytes"), _gib(line, "sent_bytes")
            rounds = f"{volume / vardrop.MNIST.gib(1):.0f}"
            of = rounds if is_dense else f"{rounds} of {length['rounds']}"
            sizes = (f"{volume:.2f} GiB", of, f"{sent:.2f} GiB")
            rows.append([label, str(line["seed"]), *_kept(line), *sizes])
            label = ""
    head = ["row", "seed", "accuracy", "non-zero", "volume", "rounds", "true bytes"]
    return markdown(head, rows)


def vardrop_devices(stored: Path) -> str:
    """Volumes as shares of a dense run of as many epochs."""
    rows = []
    for lines in _vardrop("vardrop_devices", stored).values():
        settings = lines[0]["settings"]
        start = [str(settings["clients"]), str(settings["rounds"])]
        dense = vardrop.small_gib(vardrop.MNIST, settings["clients"], settings["batch_size"])
        for line in lines:
            volume = _gib(line, "paper_bytes")
            sizes = (f"{volume:.2f} GiB", f"{100 * volume / dense:.1f} %")
            rows.append([*start, str(line["seed"]), *_kept(line), *sizes])
            start = ["", ""]
    head = ["devices", "rounds", "seed", "accuracy", "non-zero", "volume", "share"]
    return markdown(head, rows)


def vardrop_shared(stored: Path) -> str:
    """Devices with log-variances of their own beside those that share them."""
    own = _vardrop("vardrop_int8", stored)["MNIST, exact"]
    rows = []
    for one, two in zip(
        own, _vardrop("vardrop_shared_alpha", stored)["MNIST, shared"], strict=True
    ):
        after = f"{_after_warmup(two) / _after_warmup(one):.2f}"
        in_all = f"{_gib(two, 'paper_bytes') / _gib(one, 'paper_bytes'):.2f}"
        rows.append([str(one["seed"]), *_kept(one), *_kept(two), after, in_all])
    head = ["seed", "own: accuracy", "non-zero", "shared: accuracy", "non-zero",
            "traffic after the warm-up", "in all"]  # fmt: skip
    return markdown(head, rows)


def _after_warmup(line: Line) -> float:
    """Bytes by the papers' formula; runs of today have them at the evaluation after it."""
    figures = line["figures"]
    if "paper_bytes_after_warmup" in figures:
        return float(figures["paper_bytes_after_warmup"])
    point = at(line, line["settings"]["warmup"])
    if point is None:
        raise SystemExit(f"{line['row']}: no evaluation at the end of the warm-up is stored.")
    return float(figures["paper_bytes"] - point["paper_bytes"])


def vardrop_int8(stored: Path) -> str:
    """Exact gradients beside those of 8 bits."""
    runs, rows = _vardrop("vardrop_int8", stored), []
    for exact, int8 in zip(runs["MNIST, exact"], runs["MNIST, int8"], strict=True):
        sent = [_gib(line, "sent_bytes") for line in (exact, int8)]
        cells = [
            [*_kept(x), f"{size:.3f} GiB"] for x, size in zip((exact, int8), sent, strict=True)
        ]
        rows.append([str(exact["seed"]), *cells[0], *cells[1], f"{sent[0] / sent[1]:.2f} times"])
    head = ["seed", "exact: accuracy", "non-zero", "true bytes", "int8: accuracy", "non-zero",
            "true bytes", "fewer"]  # fmt: skip
    return markdown(head, rows)


def vardrop_digits(stored: Path) -> str:
    """Runs on the embedded digits."""
    runs = by_row(results.read(stored / "vardrop_digits/digits.jsonl"))
    names = {"fp32": "own", "fp32, shared log-variances": "shared", "fp32, 8 devices": "own"}
    rows = []
    for row, variances in names.items():
        (line,) = runs[row]
        devices = line["settings"]["clients"]
        sent = f"{line['figures']['paper_bytes'] / devices / 1e6:.1f} MB"
        rows.append([str(devices), variances, *_kept(line), sent])
    head = ["devices", "log-variances", "accuracy", "non-zero",
            "sent by a device, 4 bytes a value"]  # fmt: skip
    return markdown(head, rows)


TABLES = {
    "vardrop_devices": vardrop_devices,
    "vardrop_digits": vardrop_digits,
    "vardrop_int8": vardrop_int8,
    "vardrop_random": vardrop_random,
    "vardrop_shared": vardrop_shared,
}
