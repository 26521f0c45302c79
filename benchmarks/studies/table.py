"""The Markdown table of what `fedsieve reproduce NAME --json` has found.

fedsieve reproduce flops_synthetic --tier full --seeds 5 --json > results/flops_synthetic.json
python benchmarks/studies/table.py results/flops_synthetic.json [metric ...]
"""

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

T = TypeVar("T")


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def append_lines(
    out: Path, run: Callable[[T], dict[str, Any]], jobs: Iterable[T], workers: int
) -> None:
    """Run jobs side by side; each line is written as soon as it is there."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(workers, maxtasksperchild=10) as pool, out.open("a") as file:
        for line in pool.imap_unordered(run, jobs):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(json.dumps(line), flush=True)


def spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    """Mean and sample standard deviation, which one value has not."""
    around = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{around}{unit}"


def cell(found: dict[str, Any] | None) -> str:
    """Mean and standard deviation over seeds, to four digits."""
    if found is None or found["mean"] is None:
        return "-"
    spread = found["spread"]
    return f"{found['mean']:.4g}" + (f" ± {spread:.2g}" if spread else "")


def by_row(outcome: dict[str, Any], wanted: list[str]) -> str:
    """Rows of the recipe by metrics."""
    lines = outcome["lines"]
    metrics = wanted or list(dict.fromkeys(line["metric"] for line in lines))
    found = {(line["row"], line["metric"]): line["ours"] for line in lines}
    rows = dict.fromkeys(line["row"] for line in lines)
    cells = [[row, *(cell(found.get((row, metric))) for metric in metrics)] for row in rows]
    return markdown(["row", *metrics], cells)


if __name__ == "__main__":
    print(by_row(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]))
