"""Methods over compressors: accuracy against true megabytes, both ways together.

    python benchmarks/studies/compression.py trials             # runs what is missing
    python benchmarks/studies/compression.py final --only digits --seeds 0 1 2

Every method and every rival gets the same number of trials, one ladder of settings with one seed on
validation data; the best at an eighth of its exact bytes and the best at a sixteenth are then run
on test data, beside the exact run. Learning rates and all other options are the defaults. Lines are
added to results/compression as runs finish; `make pages` writes the table and the figure.
"""

import argparse
import multiprocessing
from pathlib import Path
from typing import Any, NamedTuple

import fedsieve
from fedsieve.core.errors import RoundError
from fedsieve.recipes import results

TASKS: dict[str, dict[str, Any]] = {
    "digits": {"rounds": 40},
    "fashion_mnist": {
        "model": "lenet5_caffe",
        "partition": "dirichlet(0.5)",
        "clients": 100,
        "steps": 20,
        "rounds": 100,
    },
}
TRIAL_ROUNDS = {"digits": 40, "fashion_mnist": 30}
HELD_OUT = {"validation": 0.1, "score_on": "validation"}
METHODS = ("fedavg", "fedopt", "fediter_ht", "flops_pa", "fedsparse", "vardrop")
FEEDBACK = {"error_feedback": "classic"}
EXACT = "exact"
RATIOS = (8, 16)
COMMAND = "python benchmarks/studies/compression.py"


class Entry(NamedTuple):
    """A line of the table: a method, and the settings of which the best is shown."""

    method: str
    ladder: tuple[dict[str, Any], ...]


def _ladder(*pairs: tuple[str, str], **more: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"up": up, "down": down, **more} for up, down in pairs)


LAYER = _ladder(
    ("uniform(step=1)", "lattice(step=1)"),
    ("uniform(step=2)", "lattice(step=2)"),
    ("uniform(step=3)", "lattice(step=2)"),
    ("uniform(step=2)", "lattice(step=4)"),
    ("eden(bits=1)", "lattice(step=2)"),
)
ENTRIES = {
    **{method: Entry(method, LAYER) for method in METHODS},
    "FedAvg, top-k with error feedback": Entry(
        "fedavg",
        _ladder(
            ("top_k(0.1)", "lattice(step=1)"),
            ("top_k(0.1)", "lattice(step=2)"),
            ("top_k(0.03)", "lattice(step=2)"),
            ("top_k(0.01)", "lattice(step=2)"),
            ("top_k(0.03)", "lattice(step=4)"),
            **FEEDBACK,
        ),
    ),
    "STC": Entry(
        "fedavg",
        _ladder(
            ("ternary(0.1)", "lattice(step=1)"),
            ("ternary(0.1)", "lattice(step=2)"),
            ("ternary(0.03)", "lattice(step=2)"),
            ("ternary(0.01)", "lattice(step=2)"),
            ("ternary(0.03)", "lattice(step=4)"),
            **FEEDBACK,
        ),
    ),
    "FedPAQ": Entry(
        "fedavg",
        _ladder(
            ("qsgd(levels=4)", "lattice(step=1)"),
            ("qsgd(levels=4)", "lattice(step=2)"),
            ("qsgd(levels=2)", "lattice(step=2)"),
            ("qsgd(levels=1)", "lattice(step=2)"),
            ("qsgd(levels=2)", "lattice(step=4)"),
        ),
    ),
    "DRIVE and EDEN": Entry(
        "fedavg",
        _ladder(
            ("eden(bits=2)", "lattice(step=1)"),
            ("eden(bits=2)", "lattice(step=2)"),
            ("eden(bits=1)", "lattice(step=2)"),
            ("rand_k(0.3, values=eden(bits=1))", "lattice(step=2)"),
            ("eden(bits=1)", "lattice(step=4)"),
        ),
    ),
    "PowerSGD": Entry(
        "fedavg",
        _ladder(
            ("low_rank(rank=4)", "lattice(step=1)"),
            ("low_rank(rank=4)", "lattice(step=2)"),
            ("low_rank(rank=2)", "lattice(step=2)"),
            ("low_rank(rank=1)", "lattice(step=2)"),
            ("low_rank(rank=2)", "lattice(step=4)"),
            **FEEDBACK,
        ),
    ),
}


class Run(NamedTuple):
    """One run of the study."""

    dataset: str
    entry: str
    compressed: dict[str, Any]
    seed: int
    is_trial: bool

    @property
    def row(self) -> str:
        return f"{self.entry}: {label(self.compressed)}"


def label(compressed: dict[str, Any]) -> str:
    """Settings of a ladder as a line of a table has them."""
    return f"{compressed['up']} up, {compressed['down']} down" if compressed else EXACT


def play(run: Run) -> tuple[Run, results.Line]:
    """A run and its line; one that diverges has accuracy 0."""
    settings = TASKS[run.dataset] | run.compressed
    if run.is_trial:
        settings |= HELD_OUT | {"rounds": TRIAL_ROUNDS[run.dataset]}
    settings |= {"eval_every": settings["rounds"]}
    method = ENTRIES[run.entry].method
    figures: dict[str, float | None] = {"accuracy": 0.0, "up_mb": 0.0, "down_mb": 0.0}
    try:
        result = fedsieve.run(
            dataset=run.dataset, method=method, seed=run.seed, progress=False, **settings
        )
        figures = {
            "accuracy": result.rows[-1].global_accuracy,
            "up_mb": round(result.summary.up_bytes / 1e6, 4),
            "down_mb": round(result.summary.down_bytes / 1e6, 4),
            "seconds": round(result.summary.seconds, 1),
        }
    except RoundError as error:
        print(run.row, error, flush=True)
    return run, {"row": run.row, "seed": run.seed, "settings": settings, "figures": figures}


def chosen(entry: str, trials: list[results.Line]) -> list[dict[str, Any]]:
    """The settings with the best trial at an eighth of the exact bytes, and at a sixteenth."""
    figures = {line["row"]: line["figures"] for line in trials}
    exact = _size(figures[f"{ENTRIES[entry].method}: {EXACT}"])
    best: list[dict[str, Any]] = []
    for ratio in RATIOS:
        small = [
            (found["accuracy"], -_size(found), number)
            for number, step in enumerate(ENTRIES[entry].ladder)
            if 0 < _size(found := figures[f"{entry}: {label(step)}"]) <= exact / ratio
        ]
        if small and (step := ENTRIES[entry].ladder[max(small)[2]]) not in best:
            best.append(step)
    return best


def _size(figures: dict[str, Any]) -> float:
    return float(figures["up_mb"] + figures["down_mb"])


def path_of(out: Path, dataset: str, *, is_trial: bool) -> Path:
    return out / f"{dataset}{'_trials' if is_trial else ''}.jsonl"


def runs_of(stage: str, dataset: str, out: Path, seeds: list[int]) -> list[Run]:
    """All runs of a stage on a data set."""
    if stage == "trials":
        exact = [Run(dataset, method, {}, 0, True) for method in METHODS]  # noqa: FBT003
        steps = [(name, step) for name, entry in ENTRIES.items() for step in entry.ladder]
        return exact + [Run(dataset, name, step, 0, True) for name, step in steps]  # noqa: FBT003
    trials = results.read(path_of(out, dataset, is_trial=True))
    exactly: list[dict[str, Any]] = [{}]
    return [
        Run(dataset, name, compressed, seed, False)  # noqa: FBT003
        for seed in seeds
        for name in ENTRIES
        for compressed in (exactly if name in METHODS else []) + chosen(name, trials)
    ]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["trials", "final"])
    parser.add_argument("--out", type=Path, default=Path("results/compression"))
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=10) as pool:
        for dataset in given.only:
            path = path_of(given.out, dataset, is_trial=given.stage == "trials")
            lines = results.read(path) if path.exists() else []
            done = {(line["row"], line["seed"]) for line in lines}
            runs = runs_of(given.stage, dataset, given.out, given.seeds)
            missing = [run for run in runs if (run.row, run.seed) not in done]
            for run, line in pool.imap_unordered(play, missing):
                results.add(path, COMMAND, [line])
                print(run.dataset, line["row"], line["seed"], line["figures"], flush=True)


if __name__ == "__main__":
    main()
