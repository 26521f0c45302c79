"""Round speed beside a hand-written loop: two workloads, interleaved in one process.

A  Fashion-MNIST, LeNet-5-Caffe (430,500 weights), 100 clients Dirichlet(0.2), 10 a round,
   1 epoch, batch 64, plain SGD, FedAvg: bound by convolution kernels.
B  softmax regression, 1000 features x 10 classes, 100 clients x 100 rows, 10 a round, batch 20:
   bound by overhead.

The hand-written loop is what one would write first: a module, torch.optim.SGD, the same cohorts and
mini-batches, a mean of state dicts. fedsieve runs with every message encoded and decoded, bytes
and checks on. Contestants take turns of one round (A) or twenty (B); medians and their ratio are
printed, and the norms of the global models after equal rounds prove equal work.

    python benchmarks/speed/rounds.py [--turns 15] [--workload A B]
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from fedsieve.core import keys
from fedsieve.core.errors import DataError
from fedsieve.core.keys import fold
from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.executors.inline import Inline
from fedsieve.engine.executors.pool import Pool
from fedsieve.engine.requests import Executor
from fedsieve.engine.round_settings import RoundSettings
from fedsieve.engine.rounds import Rounds
from fedsieve.engine.store import open_stores
from fedsieve.jobs.config import make
from fedsieve.jobs.job import Job, build

NEVER = 10**9
WORKLOADS: dict[str, dict[str, str | int | float]] = {
    "A": {
        "dataset": "fashion_mnist",
        "model": "lenet5_caffe",
        "partition": "dirichlet(0.2)",
        "clients": 100,
        "epochs": 1,
        "batch_size": 64,
        "lr": 0.05,
    },
    "B": {
        "dataset": "synthetic(rows=10000, features=1000, classes=10)",
        "model": "linear",
        "partition": "iid",
        "clients": 100,
        "epochs": 1,
        "batch_size": 20,
        "lr": 0.05,
    },
}


class LeNet(nn.Module):
    """LeNet-5-Caffe in its usual order of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5, bias=False)
        self.conv2 = nn.Conv2d(20, 50, 5, bias=False)
        self.fc1 = nn.Linear(800, 500, bias=False)
        self.fc2 = nn.Linear(500, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2)
        return self.fc2(nn.functional.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


def by_hand(job: Job, lr: float) -> Iterator[float]:
    """FedAvg as one writes it without a framework; yields the norm after every round."""
    dataset, shards = job.dataset, job.partition.train
    inputs = dataset.inputs(dataset.x)
    x = torch.empty(inputs.shape).copy_(inputs)  # plain NCHW strides, as a loader would give
    model = LeNet() if len(dataset.input_shape) == 3 else nn.Linear(1000, 10, bias=False)
    initial: dict[str, Tensor] = job.method.init_server(fold(0, "init")).weights
    weights = dict(zip(model.state_dict(), initial.values(), strict=True))
    for number in range(1, NEVER):
        cohort = keys.sample(fold(0, "cohort", number - 1), len(shards), 10)
        total = sum(len(shards[client]) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in weights.items()}
        for client in cohort:
            model.load_state_dict(weights)
            optimiser = torch.optim.SGD(model.parameters(), lr=lr)
            key = fold(fold(0, "client", number, client), "epoch", 0)
            order = shards[client][keys.permutation(fold(key, "order"), len(shards[client]))]
            for start in range(0, len(order), job.config.batch_size):
                rows = order[start : start + job.config.batch_size]
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), dataset.y[rows])
                torch.autograd.backward(loss)
                optimiser.step()
            for name, value in model.state_dict().items():
                mean[name] += value * (len(order) / total)
        weights = mean
        yield norm(weights)


def by_fedsieve(job: Job, execute: Executor) -> Iterator[float]:
    """The engine as `fedsieve run` uses it, evaluation apart."""
    with tempfile.TemporaryDirectory() as folder:
        stores = open_stores(Path(folder), lambda _: (), 10**9)
        plan = RoundSettings(seed=0, rounds=NEVER, cohort=10, eval_every=NEVER, min_replies=1)
        rounds = Rounds(job.method, job.federation, plan, stores, execute)
        for played in rounds.play(rounds.start()):
            model = job.method.model(played.position.server, ())
            yield norm(model or {})


def by_pfl(job: Job, lr: float) -> Iterator[float] | None:
    """pfl-research, if installed: its simulated FedAvg on the same shards."""
    if importlib.util.find_spec("pfl") is None:
        return None
    from peers import rounds  # noqa: PLC0415 - an optional contestant

    return rounds(job, lr)


def norm(weights: dict[str, Tensor]) -> float:
    return float(torch.cat([value.flatten() for value in weights.values()]).norm())


def race(contestants: dict[str, Iterator[float]], turns: int, rounds: int) -> dict[str, float]:
    """Median seconds per round; contestants take turns of `rounds` rounds, the first to warm up.

    Short rounds go several to a turn: nobody should pay for caches that another one filled.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    norms: dict[str, float] = {}
    for turn in range(turns + 1):
        for name, contestant in contestants.items():
            for _ in range(rounds):
                started = time.perf_counter()
                norms[name] = next(contestant)
                if turn:
                    times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians["hand-written"]
    for name, median in medians.items():
        print(f"  {name:<22} {median * 1e3:9.2f} ms  {base / median:6.2f}x  norm {norms[name]:.6f}")
    return medians


def main() -> None:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--workload", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.workload:
        settings = WORKLOADS[name]
        rounds = 1 if name == "A" else 20  # in a turn
        try:
            job = build(make({**settings, "method": "fedavg", "preset": "paper", "cohort": 10}))
        except DataError as error:
            print(f"workload {name} left out: {error}")
            continue
        print(
            f"workload {name}: {settings['dataset']}, {job.config.model}; {arguments.turns} turns"
        )
        runtime = ClientRuntime(job.method, job.federation)
        lr = float(settings["lr"])
        pools = {count: Pool(runtime, count, tuple) for count in (1, 2)}
        contestants = {
            "hand-written": by_hand(job, lr),
            "fedsieve": by_fedsieve(job, Inline(runtime)),
        }
        contestants |= {
            f"fedsieve, {count} worker{'s'[: count - 1]}": by_fedsieve(job, pool)
            for count, pool in pools.items()
        }
        if (rival := by_pfl(job, lr)) is not None:
            contestants["pfl-research"] = rival
        medians = race(contestants, arguments.turns, rounds)
        ratio = medians["fedsieve, 1 worker"] / medians["fedsieve, 2 workers"]
        print(f"  2 workers against 1: {ratio:.2f}x")
        for pool in pools.values():
            pool.close()


if __name__ == "__main__":
    main()
