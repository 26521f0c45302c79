"""What decides the sparsity of fedsparse: local steps, the travel of thresholds, the gate cost.

Runs on the embedded digits and writes a table of densities and, if asked, a plot:

    python benchmarks/sparsity.py results/fedsparse_sparsity.csv docs/figures/sparsity.svg
"""

import csv
import sys
from functools import cache
from pathlib import Path
from typing import Any

import fedsieve

SHARED: dict[str, Any] = {
    "method": "fedsparse", "model": "conv_small", "clients": 20, "cohort": 10, "rounds": 12,
    "batch_size": 16, "eval_every": 12, "server_lr": 2e-3,
}  # fmt: skip
RATE, TRAVEL, COST = 1e-3, 1e-2, 5e-5
STEPS, TRAVELS, COSTS = (3, 10, 20), (5e-3, 1e-2, 2e-2), (5e-6, 5e-5, 5e-4)


@cache
def density(steps: int, travel: float, cost: float) -> list[float]:
    """Density after every round, of seed 0."""
    result = fedsieve.run(**SHARED, steps=steps, threshold_travel=travel, gate_cost=cost)
    print(
        f"{steps} steps, travel {travel:g}, cost {cost:g}: {result.rows[-1].density:.3f}",
        flush=True,
    )
    return [row.density for row in result.rows]


def curves() -> dict[tuple[str, float], list[float]]:
    """(panel, value) -> densities by round."""
    found: dict[tuple[str, float], list[float]] = {}
    for steps in STEPS:
        found["rate held at 1e-3, local steps", steps] = density(steps, steps * RATE, COST)
        found["travel held at 1e-2, local steps", steps] = density(steps, TRAVEL, COST)
    for travel in TRAVELS:
        found["threshold travel", travel] = density(10, travel, COST)
    for cost in COSTS:
        found["gate cost", cost] = density(10, TRAVEL, cost)
    return found


def plot(found: dict[tuple[str, float], list[float]], path: Path) -> None:
    """One panel for each thing that is varied."""
    import matplotlib as mpl  # noqa: PLC0415 - only for the plot

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "fedsieve"
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend

    panels = list(dict.fromkeys(panel for panel, _ in found))
    figure, axes = plt.subplots(1, len(panels), figsize=(3 * len(panels), 2.8), sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        for (name, value), line in found.items():
            if name == panel:
                axis.plot(range(1, len(line) + 1), [1 - d for d in line], label=f"{value:g}")
        axis.set_title(panel, fontsize=9)
        axis.set_xlabel("round")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("sparsity")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    table, *plots = map(Path, sys.argv[1:])
    found = curves()
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["varied", "value", "round", "density"])
        for (panel, value), line in found.items():
            for number, share in enumerate(line, 1):
                writer.writerow([panel, f"{value:g}", number, f"{share:.4f}"])
    for path in plots:
        plot(found, path)


if __name__ == "__main__":
    main()
