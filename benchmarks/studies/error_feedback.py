"""Error feedback where clients take part in every round, and where they return after many.

    python benchmarks/studies/error_feedback.py                 # runs what is not there
    python benchmarks/studies/error_feedback.py --only digits --seeds 0 1

FedAvg with two biased compressors under every kind of error feedback, on validation data: digits
with all clients in every round, Fashion-MNIST with 10 of 100, so that what a client remembers is 10
rounds old. Lines are added to results/error_feedback as runs finish; `make pages` writes the table.
"""

import argparse
from pathlib import Path
from typing import Any

import fedsieve
from fedsieve.recipes import results

HELD_OUT = {"validation": 0.1, "score_on": "validation"}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"clients": 20, "cohort": 20, "eval_every": 30} | HELD_OUT,
    "fashion_mnist": {"clients": 100, "cohort": 10, "steps": 20, "rounds": 50, "eval_every": 50}
    | HELD_OUT,
}
COMPRESSORS = ("top_k(0.01, values=eden(bits=4))", "sign")
KINDS = ("none", "classic", "ef21", "ahead(0.5)")
OTHERS = ("classic(decay=0.9)", "ahead(0.5, decay=0.9)", "ahead(1)")
COMMAND = "python benchmarks/studies/error_feedback.py"


def run(dataset: str, up: str | None, kind: str, seed: int) -> results.Line:
    """The line of a run."""
    settings = TASKS[dataset] | {"up": up, "error_feedback": kind}
    result = fedsieve.run(dataset=dataset, method="fedavg", seed=seed, progress=False, **settings)
    figures = {
        "accuracy": result.rows[-1].global_accuracy,
        "up_mb": round(result.summary.up_bytes / 1e6, 3),
        "seconds": round(result.summary.seconds, 1),
    }
    return {"row": _row(up, kind), "seed": seed, "settings": settings, "figures": figures}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/error_feedback"))
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, *OTHERS])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    given = parser.parse_args()
    for seed in given.seeds:
        for kind in given.kinds:
            for dataset in given.only:
                path = given.out / f"{dataset}.jsonl"
                lines = results.read(path) if path.exists() else []
                done = {(line["row"], line["seed"]) for line in lines}
                for up in (None, *COMPRESSORS) if kind == "none" else COMPRESSORS:
                    if (_row(up, kind), seed) not in done:
                        line = run(dataset, up, kind, seed)
                        results.add(path, COMMAND, [line])
                        print(dataset, line["row"], line["figures"], flush=True)


def _row(up: str | None, kind: str) -> str:
    return f"{up or 'exact'}: {kind}"


if __name__ == "__main__":
    main()
