"""Learning rates for the rows of `spafl_fashion_mnist`, three trials each, on validation data.

    python benchmarks/studies/spafl_rates.py                  # runs what is missing
    python benchmarks/studies/spafl_rates.py --rows FedAvg FedDST

Every row gets a third of the paper's rate, that rate and three times as much, for 20 rounds of one
seed with a tenth of each client's training data held back; test data has no part in it. The best
mean over clients of any tenth round decides, and stands in the recipe's tier `small`.
"""

import argparse
import multiprocessing
from pathlib import Path
from typing import Any

import fedsieve
from fedsieve.core.errors import RoundError
from fedsieve.recipes import results
from fedsieve.recipes.recipe import find

FACTORS = (1 / 3, 1.0, 3.0)
TRIAL: dict[str, Any] = {
    "rounds": 20,
    "eval_every": 10,
    "validation": 0.1,
    "score_on": "validation",
}
SAME = ("SpaFL, outputs kept", "SpaFL, paper", "SpaFL, no exchange")  # take that of SpaFL, code
OUT = Path("results/spafl_rates/fashion_mnist.jsonl")
COMMAND = "python benchmarks/studies/spafl_rates.py"


def run(job: tuple[str, float]) -> results.Line:
    """The line of a trial; one that diverges has accuracy 0."""
    row, lr = job
    recipe = find("spafl_fashion_mnist")
    (chosen,) = (r for r in recipe.rows if r.label == row)
    settings = {**recipe.settings(chosen, "full"), **TRIAL, "lr": lr}
    try:
        rows = fedsieve.run(**settings, seed=0, progress=False).rows
        best = max(r.local_accuracy for r in rows if r.local_accuracy is not None)
    except RoundError:
        best = 0.0
    figures = {"best_local_accuracy": best}
    return {"row": f"{row}, lr {lr:.2g}", "seed": 0, "settings": {"lr": lr}, "figures": figures}


def main() -> None:
    """Run what is missing."""
    recipe = find("spafl_fashion_mnist")
    tuned = [row for row in recipe.rows if row.label not in SAME]
    rates = {row.label: float(recipe.settings(row, "full")["lr"]) for row in tuned}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=list(rates), choices=list(rates))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    done = {line["row"] for line in results.read(OUT)} if OUT.exists() else set()
    jobs = [(row, float(f"{rates[row] * f:.2g}")) for row in given.rows for f in FACTORS]
    missing = [(row, lr) for row, lr in jobs if f"{row}, lr {lr:.2g}" not in done]
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=4) as pool:
        for line in pool.imap_unordered(run, missing):
            results.add(OUT, COMMAND, [line])
            print(line, flush=True)


if __name__ == "__main__":
    main()
