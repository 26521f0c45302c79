"""Every method with nothing set: accuracy, density and bytes on four data sets, three seeds.

    python benchmarks/studies/defaults.py results/defaults.jsonl              # runs what is missing
    python benchmarks/studies/defaults.py results/defaults.jsonl --page docs/results/defaults.md
    python benchmarks/studies/defaults.py mine.jsonl --only digits --methods fedavg flops_pa

Digits run with no setting; MNIST, Fashion-MNIST and EMNIST letters with 100 clients, 20 steps
and 50 rounds. The page says on what data defaults were chosen. Lines are appended as runs
finish, so that a stopped table goes on.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import fedsieve
import fedsieve.methods  # registers them
from fedsieve.core.method import method_class, registered
from table import append_lines, markdown

LONG = {"clients": 100, "steps": 20, "rounds": 50, "eval_every": 50}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"eval_every": 30},
    "mnist": LONG,
    "fashion_mnist": LONG,
    "emnist_letters": LONG,
}
FIRST, LAST = "<!-- tables -->", "<!-- end of tables -->"
PERSONAL = ("spafl", "local_only")


def run(job: tuple[str, str, int]) -> dict[str, Any]:
    """One line of the file."""
    dataset, method, seed = job
    line: dict[str, Any] = {"dataset": dataset, "method": method, "seed": seed}
    result = fedsieve.run(
        dataset=dataset, method=method, seed=seed, progress=False, **TASKS[dataset]
    )
    last = result.rows[-1]
    sent = result.summary.up_bytes + result.summary.down_bytes
    return line | {
        "global": last.global_accuracy,
        "local": last.local_accuracy,
        "density": last.density,
        "mb": round(sent / 1e6, 3),
        "seconds": round(result.summary.seconds, 1),
    }


def rewritten(page: str, lines: list[dict[str, Any]]) -> str:
    """The page with tables of these lines between its marks."""
    before, _, rest = page.partition(FIRST)
    _, _, after = rest.partition(LAST)
    return f"{before}{FIRST}\n\n{tables(lines)}\n\n{LAST}{after}"


def tables(lines: list[dict[str, Any]]) -> str:
    """A table for each data set: means over seeds, and points above FedAvg."""
    parts = []
    for dataset in TASKS:
        ours = [x for x in lines if x["dataset"] == dataset]
        if not ours:
            continue
        by_method = {m: [x for x in ours if x["method"] == m] for m in {x["method"] for x in ours}}
        bars = {
            is_local: max(
                (_mean(by_method[m], "local" if is_local else "global") or 0.0)
                for m in (("fedavg", "local_only") if is_local else ("fedavg",))
                if m in by_method
            )
            for is_local in (False, True)
        }
        cells = [
            _cells(name, by_method[name], bars[name in PERSONAL]) for name in sorted(by_method)
        ]
        head = ["method", "accuracy", "by seed", "points", "density", "MB", "s", "seeds"]
        parts.append(f"**{dataset}**\n\n{markdown(head, cells)}")
    return "\n\n".join(parts)


def _cells(name: str, lines: list[dict[str, Any]], bar: float) -> list[str]:
    which = "local" if name in PERSONAL else "global"
    score = _mean(lines, which) or 0.0
    seeds = sorted(lines, key=lambda x: int(x["seed"]))
    return [
        name + (" (local)" if name in PERSONAL else ""),
        f"{score:.3f}",
        " ".join(f"{x[which]:.3f}" for x in seeds),
        f"{100 * (score - bar):+.1f}",
        f"{_mean(lines, 'density') or 0:.2f}",
        f"{_mean(lines, 'mb') or 0:.1f}",
        f"{_mean(lines, 'seconds') or 0:.0f}",
        str(len(lines)),
    ]


def _mean(lines: list[dict[str, Any]], name: str) -> float | None:
    values = [x[name] for x in lines if x[name] is not None]
    return mean(values) if values else None


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(registered()))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    for name in given.methods:
        method_class(name)
    text = given.out.read_text() if given.out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    if given.page:
        given.page.write_text(rewritten(given.page.read_text(), lines))
        return
    done = {(x["dataset"], x["method"], x["seed"]) for x in lines}
    jobs = [(d, m, s) for s in given.seeds for d in given.only for m in given.methods]
    missing = [job for job in jobs if job not in done]
    append_lines(given.out, run, missing, given.workers)


if __name__ == "__main__":
    main()
