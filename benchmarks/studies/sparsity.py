"""What decides the sparsity of fedsparse: local steps, the rate of thresholds, the gate cost.

Runs on the embedded digits, stores densities in results/fedsparse_sparsity and, if asked, plots:

    python benchmarks/studies/sparsity.py docs/figures/sparsity.svg
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import fedsieve
from fedsieve.recipes import results

SHARED: dict[str, Any] = {
    "method": "fedsparse", "preset": "paper", "model": "conv_small", "clients": 20, "cohort": 10,
    "rounds": 12, "batch_size": 16, "eval_every": 12, "server_lr": 2e-3,
}  # fmt: skip
RATE, COST = 1e-3, 5e-5
STEPS, RATES, COSTS = (3, 10, 20), (5e-4, 1e-3, 2e-3), (5e-6, 5e-5, 5e-4)


@cache
def densities(steps: int, rate: float, cost: float) -> list[float]:
    """After every round, where the client's rate of thresholds is `rate`; seed 0."""
    at_ten = rate * (steps / 10) ** 0.5
    result = fedsieve.run(**SHARED, steps=steps, threshold_lr=at_ten, gate_cost=cost)
    last = result.rows[-1].density
    print(f"{steps} steps, rate {rate:.3g}, cost {cost:g}: density {last:.3f}", flush=True)
    return [row.density for row in result.rows]


def curves() -> dict[tuple[str, float], list[float]]:
    """(panel, value) -> densities by round."""
    found: dict[tuple[str, float], list[float]] = {}
    for power, held in ((0.5, "rate ~ steps^-0.5"), (0.0, "rate held"), (1.0, "rate ~ 1/steps")):
        for steps in STEPS:
            rate = RATE * (10 / steps) ** power
            found[f"local steps, {held}", steps] = densities(steps, rate, COST)
    for rate in RATES:
        found["rate of thresholds", rate] = densities(10, rate, COST)
    for cost in COSTS:
        found["gate cost", cost] = densities(10, RATE, cost)
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
    found = curves()
    lines = [
        {
            "row": f"{panel}: {value:g}",
            "seed": 0,
            "figures": {"density": round(shares[-1], 4)},
            "rounds": [{"round": n, "density": round(x, 4)} for n, x in enumerate(shares, 1)],
        }
        for (panel, value), shares in found.items()
    ]
    path = Path("results/fedsparse_sparsity/digits.jsonl")
    results.add(path, "python benchmarks/studies/sparsity.py", lines)
    for name in sys.argv[1:]:
        plot(found, Path(name))


if __name__ == "__main__":
    main()
