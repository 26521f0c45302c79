"""The tables of docs/results/flops.md."""

from pathlib import Path
from statistics import mean, stdev

from fedsieve.recipes import results
from tables.common import Line, by_row, markdown


def flops_synthetic(stored: Path) -> str:
    """Mean and deviation of every row, to four digits."""
    metrics = ("true_discovery", "global_accuracy", "loss", "density", "true_mb")
    runs = by_row(results.read(stored / "flops_synthetic/full.jsonl"))
    rows = [[row, *(_significant(lines, m) for m in metrics)] for row, lines in runs.items()]
    return markdown(["row", *metrics], rows)


def _significant(lines: list[Line], metric: str) -> str:
    values = [line["figures"][metric] for line in lines]
    around = lines[0].get("spread", {}).get(metric) or (stdev(values) if values[1:] else 0)
    return f"{mean(values):.4g}" + (f" ± {around:.2g}" if around else "")


def flops_real(stored: Path) -> str:
    """Every line with what was tried and found, its score and megabytes."""
    rows = []
    for line in results.read(stored / "flops_real/tuned.jsonl"):
        task, _, method = line["row"].partition(", ")
        best = [f"{n} {v:.2g}" if n == "lr" else str(v) for n, v in line["best"].items()]
        figures, around = line["figures"], line["spread"]["global_accuracy"] or 0
        score = f"{figures['global_accuracy']:.3f} ± {around:.3f}"
        sizes = (f"{figures['true_mb']:.2f}", f"{figures['paper_mb']:.2f}")
        rounds, trials = str(line["settings"]["rounds"]), str(line["trials"])
        rows.append([task, method, rounds, trials, ", ".join(best), score, *sizes])
    head = ["task", "method", "rounds", "trials", "found", "score", "true MB", "MB by formula"]
    return markdown(head, rows)


TABLES = {"flops_real": flops_real, "flops_synthetic": flops_synthetic}
