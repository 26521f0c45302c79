"""The tables of docs/results/fedsparse.md."""

from functools import partial
from pathlib import Path
from statistics import mean

from fedsieve.recipes import results
from tables.common import Line, by_row, markdown, sent_mb, spread


def fedsparse(part: float | None, stored: Path) -> str:
    """The mean of the last ten evaluations, or the last one within a part of FedAvg's bytes."""
    runs = by_row(results.read(stored / "fedsparse_cifar10/small.jsonl"))
    total = mean(sent_mb(line["rounds"][-1]) for line in runs["FedAvg"])
    rows = []
    for label, lines in runs.items():
        series = [line["rounds"] for line in lines]
        if part is None:
            chosen = [points[-10:] for points in series]
        else:
            within = [[p for p in points if sent_mb(p) <= part * total] for points in series]
            chosen = [points[-1:] for points in within if points]
        if chosen:
            rows.append(_fedsparse_row(label, chosen))
    head = ["row", "seeds", "MB", "global accuracy", "local accuracy", "sparsity"]
    return markdown(head, rows)


def _fedsparse_row(label: str, runs: list[list[Line]]) -> list[str]:
    scores = [
        spread([100 * mean(p[name] for p in points) for points in runs], 1, " %")
        for name in ("global_accuracy", "local_accuracy")
    ]
    sparsity = spread([100 * (1 - points[-1]["density"]) for points in runs], 1, " %")
    return [label, str(len(runs)), f"{mean(sent_mb(p[-1]) for p in runs):.0f}", *scores, sparsity]


TABLES = {
    "fedsparse_end": partial(fedsparse, None),
    "fedsparse_quarter": partial(fedsparse, 0.25),
    "fedsparse_half": partial(fedsparse, 0.5),
    "fedsparse_all": partial(fedsparse, 1.0),
}
