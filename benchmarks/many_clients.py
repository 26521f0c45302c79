"""Personal models of thousands of clients: time of a round and memory as rounds go by.

    python benchmarks/many_clients.py [--rounds 60] [--steps 10] [--ram-mb 1000]

SpaFL keeps a LeNet-5 and its momentum (3.4 MB) on every client. Two federations over Fashion-MNIST,
100 and 10,000 clients, 10 a round, every client doing the same steps of 6 examples; what client
states take beyond the given memory lies on disk.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from fedsieve.config import make
from fedsieve.job import build
from fedsieve.loop import open_rounds

SETTINGS = {
    "method": "spafl",
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


def measure(clients: int, rounds: int, chosen: dict[str, int]) -> float:
    """Print memory over rounds; the median CPU seconds of a round in the second half."""
    numbers = {"clients": clients, "rounds": rounds + 1, "eval_every": 10**9}
    job = build(make(SETTINGS | numbers | chosen))
    seconds, before = [], time.process_time()
    with tempfile.TemporaryDirectory() as folder, open_rounds(job, Path(folder)) as loop:
        for played in loop.play(loop.start()):
            now = time.process_time()
            seconds.append(now - before)
            number = played.position.done
            if number % (rounds // 6) == 0:
                held = len(loop.stores.states.known())
                print(f"{clients:6d} clients, round {number:3d}: {resident_mb():6.0f} MB resident, "
                      f"{3.4 * held:6.0f} MB of states, {median(seconds[-5:]):.2f} s CPU a round",
                      flush=True)  # fmt: skip
            if number == rounds:  # the last round would evaluate every client
                break
            before = time.process_time()
    return median(seconds[rounds // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ram-mb", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {"steps": given.steps, "state_ram_mb": given.ram_mb}
    few, many = (measure(clients, given.rounds, chosen) for clients in (100, 10_000))
    print(f"round of 10,000 clients / round of 100 clients: {many / few:.2f} (CPU time)")


if __name__ == "__main__":
    main()
