"""Hard EM: the round of FedAvg, FedProx, FedOpt and FedMedian, which differ in their prior.

Paper    "Federated averaging as expectation-maximization", 2020 (spec fedsparse, section 1).
Symbols  W -> server.weights   phi_s -> up.weights   p(phi given W) -> prior
Differs  statistics of normalisation layers (task.buffers) carry no prior: they travel with the
         weights and are averaged by every method.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from fedsieve.core import local, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Task
from fedsieve.core.optimisers import SGD, Constant, Moments, Optimiser, Schedule
from fedsieve.core.options import in_range
from fedsieve.core.priors import Prior


class Server(NamedTuple):
    weights: Params
    moments: Moments  # of the server's optimiser; empty in closed form
    rounds: int


class Down(NamedTuple):
    weights: Dense
    rounds: Count  # the client's rate follows the schedule


class Up(NamedTuple):
    weights: Dense
    examples: Count


@dataclass(frozen=True, kw_only=True)
class HardEM(Method[Server, tuple[()], Down, Up]):
    """Local MAP estimates under a prior around the server's weights, then the prior's M-step."""

    task: Task
    lr: float = 0.1  # client learning rate
    schedule: Schedule = Constant()  # of the client learning rate, over rounds
    optimiser: Optimiser = SGD()  # of the client; fresh in every round
    weighting: Literal["samples", "uniform"] = "samples"  # clients count by examples or equally

    def __post_init__(self) -> None:
        in_range("lr", self.lr, 0, above=True)

    @property
    @abstractmethod
    def prior(self) -> Prior:
        """p(phi | W)."""

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), {}, 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, client: int, key: Key) -> Down:
        return Down(server.weights, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        prior, centre = self.prior, self._trainable(down.weights)

        def objective(weights: Params, batch: Batch, key: Key) -> Tensor:
            loss = self.task.loss(weights, batch, key)
            penalty = prior.penalty(self._trainable(weights), centre)
            return loss if penalty is None else loss + penalty

        trained = local.train(
            objective,
            down.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
        )
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(trained.params, data.examples), state, metrics

    def server_update(self, server: Server, replies: Sequence[Up], key: Key) -> Server:
        counts = [r.examples if self.weighting == "samples" else 1 for r in replies]
        shares = [count / sum(counts) for count in counts]
        statistics = tree.weighted_mean(
            ({n: r.weights[n] for n in sorted(self.task.buffers)}, share)
            for r, share in zip(replies, shares, strict=True)
        )
        weights, moments = self.m_step(
            server, [self._trainable(r.weights) for r in replies], shares
        )
        return Server(weights | statistics, moments, server.rounds + 1)

    def m_step(
        self, server: Server, locals_: Sequence[Params], shares: Sequence[float]
    ) -> tuple[Params, Moments]:
        """Weights and moments after the M-step; here the closed form."""
        return self.prior.m_step(locals_, shares), server.moments

    def deploy(self, server: Server, state: tuple[()]) -> Params:
        return server.weights

    def _trainable(self, weights: Params) -> Params:
        if not self.task.buffers:
            return weights
        return {n: v for n, v in weights.items() if n not in self.task.buffers}
