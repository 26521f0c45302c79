"""Bits that a vote of fedpm takes: by the paper's formula, coded alone, by theta, and drawn.

    python benchmarks/studies/fedpm_bits.py                 # Fashion-MNIST needs its files

Runs with nothing set, and with preset=paper, votes coded and drawn, on the embedded digits and on
Fashion-MNIST (100 clients, 20 steps, 50 rounds), keeps the messages of some rounds, and prints for
each of them the mean over clients, with the divergence of their probabilities from theta. Lines go
to results/fedpm_bits.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import fedsieve
from fedsieve.recipes import results
from fedsieve.wire.codec import encode
from fedsieve.wire.entropy import binary_entropy
from fedsieve.wire.frame import open_frame
from fedsieve.wire.inspect import Frame, read_frame, read_message

TASKS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "rounds": 30},
    "fashion_mnist": {"dataset": "fashion_mnist", "clients": 100, "steps": 20, "rounds": 50},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"preset": "default"},
    "drawn": {"preset": "default", "votes": "drawn"},
    "paper": {"preset": "paper"},
    "paper, drawn": {"preset": "paper", "votes": "drawn"},
}
COMMAND = "python benchmarks/studies/fedpm_bits.py"


def bits(frame: Frame) -> dict[str, float]:
    """Bits a weight of one reply: as it was sent, and where its mask is coded, in other ways."""
    message = read_message(frame)
    coded, drawn = open_frame(frame.data).masks
    size = sum(m.numel() for m in (message.mask or message.odds).values())
    if not message.mask:
        return {"drawn": 8 * len(drawn.data) / size}
    ones = sum(int(m.sum()) for m in message.mask.values())
    return {
        "formula": binary_entropy(ones, size) / size,
        "alone": 8 * encode(message).mask_bytes / size,
        "by_theta": 8 * len(coded.data) / size,
    }


def lines(task: str, variant: str, seed: int) -> Iterator[results.Line]:
    """A line for the first, a middle and the last round of a run."""
    settings = TASKS[task] | VARIANTS[variant]
    rounds = settings["rounds"]
    kept = (1, rounds // 2, rounds)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = settings | {"eval_every": rounds, "save_messages": kept, "seed": seed}
        result = fedsieve.run(method="fedpm", out=out, progress=False, **run)
        paths = sorted((out / "messages").glob("*-up.frame"))
        for number in kept:
            found = [bits(f) for f in map(read_frame, paths) if f.round == number]
            row = result.rows[number - 1]
            figures = {name: round(fmean(one[name] for one in found), 4) for name in found[0]}
            figures |= {"divergence": round(row.values["divergence"], 4)}
            figures |= {"up_bytes": row.up_bytes, "down_bytes": row.down_bytes}
            if number == rounds:
                figures |= {"up_bytes_of_run": sum(r.up_bytes for r in result.rows)}
                figures |= {"accuracy": round(row.global_accuracy or 0, 4)}
            name = f"{task}, {variant}, round {number}"
            yield {"row": name, "seed": seed, "settings": settings, "figures": figures}


def main() -> None:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/fedpm_bits"))
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    for task, seed, variant in product(given.only, given.seeds, VARIANTS):
        for line in lines(task, variant, seed):
            print(line["row"], seed, line["figures"], flush=True)
            results.add(given.out / f"{task}.jsonl", COMMAND, [line])


if __name__ == "__main__":
    main()
