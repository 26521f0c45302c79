"""FedSparse and its rivals at equal megabytes, as a small file and as tables.

    fedsieve reproduce fedsparse_cifar10 --tier small --seeds 3 --root LIBRARY
    python benchmarks/studies/fedsparse_results.py LIBRARY results/fedsparse_fashion_mnist.json

The file holds every evaluated round of every finished run with the bytes sent up to then; tables
are made of it alone. A score at a budget is that of the last evaluation within it; at the end it is
the mean of the last ten. Budgets are a quarter, a half and all of what FedAvg sends.
"""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from fedsieve.jobs import library
from fedsieve.metrics.rows import Row
from fedsieve.recipes.recipe import Recipe, find
from spafl_results import series
from table import markdown, spread

Points = list[dict[str, Any]]
LAST = 10
HEAD = ["row", "seeds", "MB", "global accuracy", "local accuracy", "sparsity"]


def export(root: Path, target: Path) -> None:
    """Write the finished runs of the recipe's tier: row -> seed -> evaluated rounds."""
    recipe = find("fedsparse_cifar10")
    assert isinstance(recipe, Recipe)
    found: dict[str, dict[str, Points]] = {}
    for row in recipe.rows:
        for seed in range(3):
            record = library.find(recipe.settings(row, "small") | {"seed": seed}, root)
            if record is not None:
                points = zip(series(record.rows), densities(record.rows), strict=True)
                found.setdefault(row.label, {})[str(seed)] = [
                    point | {"density": density} for point, density in points
                ]
    target.write_text(json.dumps(found) + "\n")


def densities(rows: list[Row]) -> list[float]:
    """Of the evaluated rounds."""
    return [round(row.density, 5) for row in rows if row.local_accuracy is not None]


def sent(point: dict[str, Any]) -> float:
    """Megabytes of both directions."""
    return float(point["up_bytes"] + point["down_bytes"]) / 1e6


def line(label: str, runs: list[Points]) -> list[str]:
    """One row of a table: scores as means over the points, then over seeds."""
    scores = [
        spread([100 * mean(p[name] for p in points) for points in runs], 1, " %")
        for name in ("global_accuracy", "local_accuracy")
    ]
    sparsity = spread([100 * (1 - points[-1]["density"]) for points in runs], 1, " %")
    megabytes = f"{mean(sent(points[-1]) for points in runs):.0f}"
    return [label, str(len(runs)), megabytes, *scores, sparsity]


def within(points: Points, budget: float) -> Points:
    """The last evaluation that does not exceed a budget."""
    return [p for p in points if sent(p) <= budget][-1:]


def tables(found: dict[str, dict[str, Points]]) -> None:
    """Print scores at the end of runs, and at parts of FedAvg's total."""
    print("\nmean of the last ten evaluations\n")
    ends = [line(label, [p[-LAST:] for p in runs.values()]) for label, runs in found.items()]
    print(markdown(HEAD, ends))
    total = mean(sent(points[-1]) for points in found["FedAvg"].values())
    for part in (0.25, 0.5, 1):
        print(f"\nwithin {part * total:.0f} MB, {part:g} of what FedAvg sends\n")
        lines = []
        for label, runs in found.items():
            reached = [p for points in runs.values() if (p := within(points, part * total))]
            if reached:
                lines.append(line(label, reached))
        print(markdown(HEAD, lines))


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
    tables(json.loads(Path(sys.argv[2]).read_text()))
