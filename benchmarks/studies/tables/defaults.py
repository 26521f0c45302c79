"""The tables of docs/results/defaults.md."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean

from fedsieve.recipes import results
from tables.common import Line, by_row, markdown


def default_tables(stored: Path) -> str:
    """A table for each data set: means over seeds, and points above FedAvg."""
    head = ["method", "accuracy", "by seed", "points", "density", "MB", "s", "seeds"]
    parts = []
    for dataset in ("digits", "mnist", "fashion_mnist", "emnist_letters"):
        runs = by_row(results.read(stored / "defaults" / f"{dataset}.jsonl"))
        bars = {
            "global_accuracy": _score(runs["fedavg"], "global_accuracy"),
            "local_accuracy": max(
                _score(runs[name], "local_accuracy") for name in ("fedavg", "local_only")
            ),
        }
        rows = [_default_row(name, runs[name], bars) for name in sorted(runs)]
        parts.append(f"**{dataset}**\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def _score(lines: list[Line], name: str) -> float:
    return mean(float(line["figures"][name]) for line in lines)


def _default_row(name: str, lines: list[Line], bars: Mapping[str, float]) -> list[str]:
    is_personal = "global_accuracy" not in lines[0]["figures"]
    which = "local_accuracy" if is_personal else "global_accuracy"
    score = _score(lines, which)
    return [
        name + (" (local)" if is_personal else ""),
        f"{score:.3f}",
        " ".join(f"{line['figures'][which]:.3f}" for line in lines),
        f"{100 * (score - bars[which]):+.1f}",
        f"{_score(lines, 'density'):.2f}",
        f"{_score(lines, 'true_mb'):.1f}",
        f"{_score(lines, 'seconds'):.0f}",
        str(len(lines)),
    ]


TABLES = {"defaults": default_tables}
