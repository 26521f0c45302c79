"""FLoPS-PA and its rivals on real data, equally many non-zeros, each tuned with as many trials.

    python benchmarks/studies/flops_real.py --root LIBRARY [--only mnist]

Rates are chosen on held-out training data of the first seed (`fedsieve tune`), then run on test
data with three seeds. FLoPS-PA is run once more as it is by default. Finished runs are found again
in the library at --root, so that a stopped table goes on. Lines go to results/flops_real, of which
`make pages` makes the table.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedsieve.jobs.library import Record, find_or_run
from fedsieve.jobs.search_space import read_space
from fedsieve.jobs.tune import tune
from fedsieve.recipes import results
from fedsieve.recipes.runner import figures_of

SHARED = {"rounds": 50, "steps": 20, "batch_size": 20, "clients": 100, "cohort": 10,
          "eval_every": 10, "partition": "dirichlet(0.5)"}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "mnist linear 0.05": {"dataset": "mnist", "model": "linear", "target_density": 0.05},
    "emnist linear 0.05": {
        "dataset": "emnist_letters", "model": "linear", "target_density": 0.05, "clients": 1000,
    },
    "emnist linear 0.005": {
        "dataset": "emnist_letters", "model": "linear", "target_density": 0.005, "clients": 1000,
    },
    "delicious linear 0.05": {
        "dataset": "delicious(labels=103)", "model": "linear", "target_density": 0.05,
        "partition": "clusters(10, 20, 2)",
    },
    "mnist cnn 0.05": {"dataset": "mnist", "model": "lenet5", "target_density": 0.05},
}  # fmt: skip
SPACES = {
    "flops_pa": ["lr=log(0.05,2)"],
    "fediter_ht": ["lr=log(0.003,1)", "optimiser=choice(sgd,adam)"],
    "fedavg_prune": ["lr=log(0.01,1)"],
    "flops_pa_central": ["lr=log(0.05,2)"],
}


def line(task: str, method: str, records: list[Record], **more: Any) -> results.Line:
    """One line of the table: test scores, densities and bytes over seeds."""
    runs = [figures_of(record) for record in records]
    scores = [figures["global_accuracy"] for figures in runs]
    names = ("global_accuracy", "density", "true_mb", "paper_mb")
    return {
        "row": f"{task}, {method}",
        "seeds": len(records),
        "settings": {"rounds": records[0].summary.rounds},
        "figures": {name: mean(figures[name] for figures in runs) for name in names},
        "spread": {"global_accuracy": stdev(scores) if len(scores) > 1 else None},
        "score": records[0].summary.score,
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/flops_real/tuned.jsonl"))
    parser.add_argument("--root", type=Path, default=Path("runs/flops_real"))
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    command = f"python benchmarks/studies/flops_real.py --trials {given.trials}"
    for task, own in TASKS.items():
        for method, space in SPACES.items() if given.only in task else ():
            settings = {
                **SHARED,
                **own,
                "method": method,
                "preset": "paper",
                "rounds": given.rounds,
            }
            if method in {"fediter_ht", "fedavg_prune"}:
                settings["units"] = "weights(biases=true)"  # as FLoPS counts
            if method == "fediter_ht":
                settings["start"] = "zero" if own["model"] == "linear" else "level"
            ((tuning, records),) = tune(
                settings, read_space(space), given.root, trials=given.trials, seeds=given.seeds,
                trial_seeds=1, metric="last",
            )  # fmt: skip
            lines = [line(task, method, records, trials=tuning.trials, best=tuning.best)]
            if method == "flops_pa":
                runs = [find_or_run(settings | {"seed": s}, given.root) for s in range(given.seeds)]
                lines.append(line(task, "flops_pa, default", runs, trials=0, best={}))
            results.add(given.out, command, lines)


if __name__ == "__main__":
    main()
