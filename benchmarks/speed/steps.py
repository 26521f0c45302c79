"""The engine's own share of a step, where messages are exchanged at every step.

CifarNet (1.38 M weights) on MNIST, 4 devices, batch 128, variational dropout. CPU time of a round
is split into the method's (training, optimisers, averages) and all the rest: encoding, decoding,
checks, states, metrics and rows. Three phases: dense warm-up, many weights, few weights.

    python benchmarks/speed/steps.py [--rounds 5]
"""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fedsieve.core.errors import DataError
from fedsieve.core.keys import Key
from fedsieve.core.method import Batches, Metrics, Round
from fedsieve.jobs.config import make
from fedsieve.jobs.execution import open_rounds
from fedsieve.jobs.job import Job, build
from fedsieve.methods.vardrop import Down, Server, State, Up, VarDrop

NEVER = 10**9
SETTINGS = {
    "method": "vardrop",
    "preset": "paper",
    "dataset": "mnist",
    "model": "cifarnet",
    "partition": "iid",
    "clients": 4,
    "batch_size": 128,
}
PHASES: dict[str, dict[str, float]] = {
    "dense warm-up": {"warmup": NEVER},
    "many weights": {"log_variance": -10.0},
    "few weights": {"log_variance": -5.2},
}
spent: list[float] = []


@contextmanager
def counted() -> Iterator[None]:
    started = time.process_time()
    yield
    spent.append(time.process_time() - started)


@dataclass(frozen=True, kw_only=True)
class Timed(VarDrop):
    """The method with its own CPU time counted."""

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        with counted():
            return super().client_update(down, state, data, key)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        with counted():
            return super().server_update(server, round, key)


def timed(job: Job) -> Job:
    fields = {f.name: getattr(job.method, f.name) for f in dataclasses.fields(VarDrop)}
    return dataclasses.replace(job, method=Timed(**fields))


def measure(job: Job, rounds: int) -> None:
    """Print CPU seconds of a device's step, and the engine's share of them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_rounds(timed(job), Path(folder), rounds=NEVER, eval_every=NEVER) as loop,
    ):
        play: Iterator[Any] = loop.play(loop.start())
        list(islice(play, 3))
        spent.clear()
        started = time.process_time()
        last = list(islice(play, rounds))[-1]
        total = time.process_time() - started
    step, own = total / rounds / 4, (total - sum(spent)) / rounds / 4
    print(
        f"{step * 1e3:6.0f} ms a step, engine {own * 1e3:5.0f} ms "
        f"= {own / step:5.1%}, density {last.row.density:.2f}, "
        f"{(last.row.up_bytes + last.row.down_bytes) / 8e6:5.2f} MB a message"
    )


def main() -> None:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        jobs = {name: build(make({**SETTINGS, **options})) for name, options in PHASES.items()}
    except DataError as error:
        print(f"left out: {error}")
        return
    print("engine's share of a step, CPU time: CifarNet, MNIST, batch 128")
    for name, job in jobs.items():
        print(f"  {name:<14}", end="")
        measure(job, arguments.rounds)


if __name__ == "__main__":
    main()
