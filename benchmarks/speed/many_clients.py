"""Personal models of thousands of clients: time of a round and memory as rounds go by.

    python benchmarks/speed/many_clients.py [--rounds 60] [--steps 10] [--ram-mb 1000]

SpaFL keeps a LeNet-5 and its momentum (3.4 MB) on every client. Two federations over Fashion-MNIST,
100 and 10,000 clients, 10 a round, every client doing the same steps of 6 examples, take turns
round by round, so that noise of the machine meets both; what client states take beyond the given
memory lies on disk.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from fedsieve.jobs.config import make
from fedsieve.jobs.execution import open_rounds
from fedsieve.jobs.job import build

SETTINGS = {
    "method": "spafl",
    "preset": "code",
    "dataset": "fashion_mnist",
    "model": "lenet5_caffe",
    "partition": "iid",
    "input_scale": "raw255",
    "cohort": 10,
    "batch_size": 6,
    "lr": 0.001,
}


def resident_mb() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Turn(NamedTuple):
    seconds: float  # CPU time of the round
    states_mb: float


def turns(clients: int, rounds: int, chosen: dict[str, int]) -> Iterator[Turn]:
    """The rounds of a federation, one at a time."""
    numbers = {"clients": clients, "rounds": rounds + 1, "eval_every": 10**9}
    job = build(make(SETTINGS | numbers | chosen))
    with tempfile.TemporaryDirectory() as folder, open_rounds(job, Path(folder)) as loop:
        play = loop.play(loop.start())
        for _ in range(rounds):  # the last round would evaluate every client
            started = time.process_time()
            next(play)
            seconds = time.process_time() - started
            yield Turn(seconds, 3.4 * len(loop.stores.states.known()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ram-mb", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {"steps": given.steps, "state_ram_mb": given.ram_mb}
    pairs: list[tuple[Turn, Turn]] = []
    for few, many in zip(*(turns(n, given.rounds, chosen) for n in (100, 10_000)), strict=True):
        pairs.append((few, many))
        if len(pairs) % max(given.rounds // 6, 1) == 0:
            print(f"round {len(pairs):3d}: {resident_mb():5.0f} MB resident, states "
                  f"{few.states_mb:4.0f} + {many.states_mb:4.0f} MB, CPU seconds of a round "
                  f"{few.seconds:.2f} and {many.seconds:.2f}", flush=True)  # fmt: skip
    ratio = median(many.seconds / few.seconds for few, many in pairs[given.rounds // 2 :])
    print(f"round of 10,000 clients / of 100 clients: {ratio:.2f} (CPU time, median of pairs)")


if __name__ == "__main__":
    main()
