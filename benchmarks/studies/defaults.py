"""Every method with nothing set: accuracy, density and bytes on four data sets, three seeds.

    python benchmarks/studies/defaults.py                   # runs what results/defaults has not
    python benchmarks/studies/defaults.py --only digits --methods fedavg flops_pa --out mine

Digits run with no setting; MNIST, Fashion-MNIST and EMNIST letters with 100 clients, 20 steps
and 50 rounds. The page says on what data defaults were chosen. Lines are added as runs finish, so
that a stopped table goes on; `make pages` writes the tables.
"""

import argparse
import multiprocessing
from pathlib import Path
from typing import Any

import fedsieve
import fedsieve.methods  # registers them
from fedsieve.core.method import method_class, registered
from fedsieve.recipes import results

LONG = {"clients": 100, "steps": 20, "rounds": 50, "eval_every": 50}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"eval_every": 30},
    "mnist": LONG,
    "fashion_mnist": LONG,
    "emnist_letters": LONG,
}
COMMAND = "python benchmarks/studies/defaults.py"


def run(job: tuple[str, str, int]) -> tuple[str, results.Line]:
    """The data set, and the line of a run."""
    dataset, method, seed = job
    result = fedsieve.run(
        dataset=dataset, method=method, seed=seed, progress=False, **TASKS[dataset]
    )
    last, summary = result.rows[-1], result.summary
    found = {
        "global_accuracy": last.global_accuracy,
        "local_accuracy": last.local_accuracy,
        "density": last.density,
        "true_mb": round(summary.sent_bytes / 1e6, 3),
        "seconds": round(summary.seconds, 1),
    }
    figures = {name: value for name, value in found.items() if value is not None}
    return dataset, {"row": method, "seed": seed, "settings": TASKS[dataset], "figures": figures}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/defaults"))
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(registered()))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    for name in given.methods:
        method_class(name)
    files = {dataset: given.out / f"{dataset}.jsonl" for dataset in given.only}
    done = {
        (dataset, line["row"], line["seed"])
        for dataset, path in files.items()
        if path.exists()
        for line in results.read(path)
    }
    jobs = [(d, m, s) for s in given.seeds for d in given.only for m in given.methods]
    missing = [job for job in jobs if job not in done]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(given.workers, maxtasksperchild=10) as pool:
        for dataset, line in pool.imap_unordered(run, missing):
            results.add(files[dataset], COMMAND, [line])
            print(dataset, line, flush=True)


if __name__ == "__main__":
    main()
