"""The tables of docs/results/error_feedback.md."""

from pathlib import Path
from statistics import mean

from fedsieve.recipes import results
from tables.common import Line, by_row, markdown


def feedback_tables(stored: Path) -> str:
    """A table for each data set: accuracy on validation data, and megabytes sent up."""
    head = ["up", "error feedback", "accuracy", "by seed", "MB up", "seeds"]
    parts = []
    for dataset in ("digits", "fashion_mnist"):
        runs = by_row(results.read(stored / "error_feedback" / f"{dataset}.jsonl"))
        ordered = sorted(runs, key=lambda row: row.rpartition(": ")[0])
        rows = [_row(row, runs[row]) for row in ordered]
        parts.append(f"**{dataset}**\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def _row(name: str, lines: list[Line]) -> list[str]:
    up, _, kind = name.rpartition(": ")
    scores = [float(line["figures"]["accuracy"]) for line in lines]
    return [
        f"`{up}`",
        f"`{kind}`",
        f"{mean(scores):.3f}",
        " ".join(f"{score:.3f}" for score in scores),
        f"{mean(float(line['figures']['up_mb']) for line in lines):.2f}",
        str(len(lines)),
    ]


TABLES = {"error_feedback": feedback_tables}
