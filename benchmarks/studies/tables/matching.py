"""The tables of docs/results/matching.md."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from scipy import stats

from fedsieve.recipes import results
from fedsieve.recipes.papers.matching import FASHION, SAME_SPLIT
from tables.common import Line, by_row, markdown, spread


def matching(name: str, cell: str, stored: Path) -> str:
    """All rows of a cell; they share their networks and are compared with PFNM seed by seed."""
    runs = _cell(name, cell, stored)
    base = [line["figures"]["global_accuracy"] for line in runs["PFNM"]]
    rows = []
    for row, lines in runs.items():
        scores = [line["figures"]["global_accuracy"] for line in lines]
        ends = f"{min(scores):.3f} - {max(scores):.3f}"
        rows.append([row, spread(scores, 3), ends, _atoms(lines), *_paired(scores, base)])
    head = ["row", "accuracy", "min - max", "atoms", "against PFNM", "t", "ranks", "ahead"]
    return markdown(head, rows)


def matching_depth(stored: Path) -> str:
    """Networks of two and of three hidden layers."""
    two, three = (
        _cell("matching_depth/small", f"Fashion-MNIST, {n} layers", stored) for n in (2, 3)
    )
    rows = []
    for row in two:
        cells = [row]
        for lines in (two[row], three[row]):
            atoms = re.sub(r" ± \d+", "", _atoms(lines))
            cells += [spread([x["figures"]["global_accuracy"] for x in lines], 3), atoms]
        rows.append(cells)
    return markdown(["row", "two layers", "atoms", "three layers", "atoms"], rows)


def matching_rounds(stored: Path) -> str:
    """Methods down, partitions across."""
    runs = by_row(results.read(stored / "matching_rounds_mnist/small.jsonl"))
    names = {"PFNM": "PFNM", "GPI-FNM": "GPI-FNM, eps 0.1", "FedAvg": "FedAvg"}
    rows = [
        [label]
        + [
            spread([x["figures"]["global_accuracy"] for x in runs[f"{method}, {part}"]], 3)
            for part in ("homogeneous", "heterogeneous")
        ]
        for method, label in names.items()
    ]
    return markdown(["row", "accuracy, equal parts", "accuracy, `capped_dirichlet(0.4)`"], rows)


def _cell(name: str, cell: str, stored: Path) -> dict[str, list[Line]]:
    runs = by_row(results.read(stored / f"{name}.jsonl"))
    start = f"{cell}: "
    return {row.removeprefix(start): x for row, x in runs.items() if row.startswith(start)}


def _atoms(lines: list[Line]) -> str:
    layers = [name for name in lines[0]["figures"] if name.startswith("atoms_")]
    return ", ".join(spread([line["figures"][name] for line in lines], 0) for name in layers)


def _paired(scores: list[float], base: list[float]) -> list[str]:
    gains = [a - b for a, b in zip(scores, base, strict=True)]
    if not any(gains):
        return [""] * 4
    ahead = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
    if len(gains) < 3:
        return [f"{mean(gains):+.3f}", "", "", ahead]
    reach = stats.t.ppf(0.975, len(gains) - 1) * stdev(gains) / len(gains) ** 0.5
    t = stats.ttest_rel(scores, base).pvalue
    ranks = stats.wilcoxon(gains).pvalue
    return [f"{mean(gains):+.3f} ± {reach:.3f}", f"{t:.2g}", f"{ranks:.2g}", ahead]


TABLES: dict[str, Callable[[Path], str]] = {
    "matching_depth": matching_depth,
    "matching_depth_smoke": partial(matching, "matching_depth/smoke", "digits, 2 layers"),
    "matching_rounds": matching_rounds,
    "matching_split": partial(matching, "matching_clients/small", SAME_SPLIT),
    "matching_splits": partial(matching, "matching_clients/small", FASHION),
}
