"""Trials of one-shot matching as a small file, and as the tables of docs/results/matching.md.

    fedsieve reproduce matching_clients --tier small --seeds 10 --root LIBRARY
    python benchmarks/studies/matching_results.py LIBRARY results/matching_one_shot.json

Every cell of the studies gives its finished trials, one for each seed, with all rows. Tables are
made of the file alone. Rows of a trial share their local networks, so that a row is compared with
PFNM seed by seed: mean difference with its 95 % interval, p of the paired t-test, of the signed
ranks, and in how many seeds the row is ahead.
"""

import json
import sys
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from scipy import stats

from fedsieve.jobs.library import run_hash
from fedsieve.recipes.recipe import Study, TierName, Trial, find
from table import markdown, spread

SEEDS = range(10)
TIERS: tuple[TierName, ...] = ("small", "smoke")


def export(library: Path, target: Path) -> None:
    """Write the finished trials of the studies: cell -> seed -> row -> figures."""
    found: dict[str, dict[str, Trial]] = {}
    for name, tier in product(("matching_clients", "matching_depth"), TIERS):
        study = find(name)
        assert isinstance(study, Study)
        for cell, settings in study.tiers[tier].cells.items():
            for seed in SEEDS:
                file = f"{name}-{run_hash({**settings, 'seed': seed})}.json"
                path = library / "studies" / file
                if path.exists():
                    trial = json.loads(path.read_text())
                    found.setdefault(cell, {})[str(seed)] = rounded(trial)
    target.write_text(json.dumps(found, indent=1) + "\n")


def rounded(trial: Trial) -> Trial:
    """Without the digits that a share of 10,000 pictures does not have."""
    return {row: {n: round(v, 5) for n, v in values.items()} for row, values in trial.items()}


def table(trials: list[Trial]) -> str:
    """All rows of a cell."""
    lines = []
    base = [trial["PFNM"]["global_accuracy"] for trial in trials]
    for row in trials[0]:
        scores = [trial[row]["global_accuracy"] for trial in trials]
        figures = [spread(scores, 3), f"{min(scores):.3f} - {max(scores):.3f}"]
        layers = [n for n in trials[0][row] if n.startswith("atoms_")]
        figures.append(", ".join(spread([t[row][n] for t in trials], 0) for n in layers))
        lines.append([row, *figures, *paired(scores, base)])
    head = ["row", "accuracy", "min - max", "atoms", "against PFNM", "t", "ranks", "ahead"]
    return markdown(head, lines)


def paired(scores: list[float], base: list[float]) -> list[str]:
    """Cells of the table that compare a row with PFNM."""
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


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
    for name, trials in json.loads(Path(sys.argv[2]).read_text()).items():
        print(f"\n{name}: {len(trials)} seeds\n\n{table(list(trials.values()))}")
