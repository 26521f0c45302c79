"""What decides the sparsity of fedsparse: local steps, the rate of thresholds, the gate cost.

Runs on the embedded digits, stores densities in results/fedsparse_sparsity and, if asked, plots:

    python benchmarks/studies/sparsity.py docs/figures/sparsity.svg
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import fedsieve
from fedsieve.drawing.plot import Plot, plot
from fedsieve.drawing.svg import Axis, Point, Series, tag
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


def panel(name: str, lines: dict[float, list[float]]) -> Plot:
    """Sparsity over rounds, a curve for each value of what is varied."""
    series, labels = [], {}
    for i, (value, line) in enumerate(lines.items()):
        labels[i] = f"{value:g}"
        told = [(n, 1 - d, f"{value:g}, round {n}: {1 - d:.3f}") for n, d in enumerate(line, 1)]
        series.append(Series(i, [Point(*point) for point in told]))
    height = Axis("sparsity", includes=(0.0, 0.6))
    return plot(series, labels, Axis("round", is_whole=True), height, f"sparsity: {name}")


def draw(found: dict[tuple[str, float], list[float]], path: Path) -> None:
    """One panel for each thing that is varied, three in a row."""
    names = dict.fromkeys(name for name, _ in found)
    panels = [panel(n, {v: line for (m, v), line in found.items() if m == n}) for n in names]
    wide, tall = 588, 490
    placed = [
        tag("g", one.__html__(), transform=f"translate({i % 3 * wide} {i // 3 * tall})")
        for i, one in enumerate(panels)
    ]
    box = f"0 0 {3 * wide} {-(-len(panels) // 3) * tall}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tag("svg", *placed, xmlns="http://www.w3.org/2000/svg", viewBox=box) + "\n")


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
        draw(found, Path(name))


if __name__ == "__main__":
    main()
