"""Bits that a vote of fedpm takes: by the paper's formula, coded alone, and coded by theta.

    python benchmarks/studies/fedpm_bits.py                 # Fashion-MNIST needs its files

Runs with nothing set, and with preset=paper, on the embedded digits and on Fashion-MNIST (100
clients, 20 steps, 50 rounds), keeps the messages of some rounds, and prints for each of them the
mean over clients. Lines go to results/fedpm_bits.
"""

import argparse
import tempfile
from collections.abc import Iterator
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
COMMAND = "python benchmarks/studies/fedpm_bits.py"


def bits(frame: Frame) -> dict[str, float]:
    """Bits a weight of one reply, in three ways."""
    message = read_message(frame)
    size = sum(m.numel() for m in message.mask.values())
    ones = sum(int(m.sum()) for m in message.mask.values())
    (block,) = open_frame(frame.data).masks
    return {
        "formula": binary_entropy(ones, size) / size,
        "alone": 8 * encode(message).mask_bytes / size,
        "by_theta": 8 * len(block.data) / size,
    }


def lines(task: str, preset: str) -> Iterator[results.Line]:
    """A line for the first, a middle and the last round of a run."""
    settings = TASKS[task] | {"preset": preset}
    rounds = settings["rounds"]
    kept = (1, rounds // 2, rounds)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = settings | {"eval_every": rounds, "save_messages": kept}
        result = fedsieve.run(method="fedpm", out=out, progress=False, **run)
        paths = sorted((out / "messages").glob("*-up.frame"))
        for number in kept:
            found = [bits(f) for f in map(read_frame, paths) if f.round == number]
            row = result.rows[number - 1]
            figures = {name: round(fmean(one[name] for one in found), 4) for name in found[0]}
            figures |= {"up_bytes": row.up_bytes, "down_bytes": row.down_bytes}
            name = f"{task}, {preset}, round {number}"
            yield {"row": name, "seed": 0, "settings": settings, "figures": figures}


def main() -> None:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/fedpm_bits"))
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    given = parser.parse_args()
    for task in given.only:
        for preset in ("default", "paper"):
            for line in lines(task, preset):
                print(line["row"], line["figures"], flush=True)
                results.add(given.out / f"{task}.jsonl", COMMAND, [line])


if __name__ == "__main__":
    main()
