"""FedAvg: local SGD and the mean of the local models.

Paper    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
         Data", AISTATS 2017, Algorithm 1; as EM: a Gaussian prior of vanishing precision.
Symbols  w_t -> server.weights   w^k_{t+1} -> up.weights   n_k -> up.examples
Differs  nothing; `weighting="uniform"` gives the mean 1/K of the EM paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Examples, Params
from fedsieve.core.method import Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule

PAPER = {"lr": 0.1, "clip_norm": None, "schedule": "constant"}


class Server(NamedTuple):
    weights: Params
    rounds: int


class Own(NamedTuple):
    """A client's last local model, for its evaluation alone; empty before it has one."""

    weights: Params


Memory: TypeAlias = Own | tuple[()]


class Down(NamedTuple):
    weights: Dense
    rounds: Count


class Up(NamedTuple):
    weights: Dense
    examples: Examples


@register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method[Server, Memory, Down, Up]):
    """Federated averaging: local SGD and the mean of the local models."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient of weights; the papers: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )
    personal: bool = option(
        False, "clients keep their last local model, and local accuracy is that one's"
    )

    def __post_init__(self) -> None:
        in_range("lr", self.lr, 0, above=True)
        if self.clip_norm is not None:
            in_range("clip_norm", self.clip_norm, 0, above=True)

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), 0)

    def init_client(self, client: int, key: Key) -> Memory:
        return Own({}) if self.personal else ()

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.weights, server.rounds)

    def client_update(
        self, down: Down, state: Memory, data: Batches, key: Key
    ) -> tuple[Up, Memory, Metrics]:
        trained = local.train(
            self.task.loss,
            down.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
        )
        new_state = Own(trained.params) if self.personal else ()
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(trained.params, data.examples), new_state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        counts = [r.examples if self.weighting == "samples" else 1 for r in round.replies]
        shares = [count / sum(counts) for count in counts]
        mean = tree.weighted_mean(zip((r.weights for r in round.replies), shares, strict=True))
        statistics = {n: mean.pop(n) for n in sorted(self.task.buffers)}  # they come last
        return Server(mean | statistics, server.rounds + 1)

    def model(self, server: Server, state: Memory) -> Params | None:
        return (state.weights or None) if isinstance(state, Own) else server.weights
