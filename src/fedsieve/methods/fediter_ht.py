"""FedIter-HT: iterative hard thresholding on clients and server; exactly m weights at all times.

Paper    Tong et al., "Federated Nonconvex Sparse Learning", 2022 (specification flops, section 6).
Symbols  H_m -> masks.top_k   m = floor(rho P) -> kept weights   rho -> target_density
Differs  deep nets start from the m largest initial weights: 0 is a stationary point of theirs;
         `start="zero"` is the paper's start. Adam by default: plain SGD rarely brings a pruned
         weight of a deep net back above the threshold within a round. Biases are thresholded
         with `units=weights(biases=true)`, as in FLoPS; normalisation never is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch

from fedsieve.core import local, masks, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Kept, Mask, Params
from fedsieve.core.method import Batches, Method, Metrics, Task, register
from fedsieve.core.optimisers import Adam, Optimiser
from fedsieve.core.options import in_range
from fedsieve.core.schedules import Constant, Schedule
from fedsieve.core.units import Weights, budget, level, regrown


class Server(NamedTuple):
    weights: Params
    rounds: int


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    examples: Count


@register("fediter_ht")
@dataclass(frozen=True, kw_only=True)
class FedIterHT(Method[Server, tuple[()], Down, Up]):
    """Top-m weights after every local step and after every average."""

    task: Task
    thresholds_steps: ClassVar[bool] = True  # after every local step, not only after the average
    target_density: float = 0.1  # rho: share of what is thresholded that is kept
    units: Weights = Weights(biases=False)  # what is thresholded: weights, or their biases too
    start: Literal["init", "level", "zero"] = "init"  # the largest of all, of every layer, or all 0
    lr: float = 0.01  # client learning rate
    schedule: Schedule = Constant()  # of the client learning rate, over rounds
    optimiser: Optimiser = Adam()  # of the client; fresh in every round; the paper: sgd
    weighting: Literal["samples", "uniform"] = "samples"  # clients count by examples or equally

    def __post_init__(self) -> None:
        in_range("target_density", self.target_density, 0, 1, above=True)
        in_range("lr", self.lr, 0, above=True)
        budget(self.units, self.task.graph, self.target_density)

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        if self.start == "zero":
            zeros = {n: torch.zeros_like(weights[n]) for n in self.units.shapes(self.task.graph)}
            return Server(weights | zeros, 0)
        if self.start == "level":
            chosen = self._largest(level(self.task.graph, weights))
            grown = regrown(self.task.graph, weights, masks.apply(weights, chosen))
            return Server(masks.apply(grown, chosen), 0)
        return Server(self._threshold(weights), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, client: int, key: Key) -> Down:
        return Down(self._support(server.weights), server.weights, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        trained = local.train(
            self.task.loss,
            down.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            project=self._threshold if self.thresholds_steps else None,
        )
        support = self._support(trained.params)
        metrics = Metrics(trained.processed, {"train_loss": trained.loss}, support)
        return Up(support, trained.params, data.examples), state, metrics

    def server_update(self, server: Server, replies: Sequence[Up], key: Key) -> Server:
        mean = tree.weighted_mean(
            (r.weights, r.examples if self.weighting == "samples" else 1) for r in replies
        )
        return Server(self._threshold(mean), server.rounds + 1)

    def deploy(self, server: Server, state: tuple[()]) -> Params:
        return server.weights

    def _threshold(self, weights: Params) -> Params:
        """H_m: all but the m largest become 0."""
        return masks.apply(weights, self._largest(weights))

    def _largest(self, weights: Params) -> Mask:
        graph = self.task.graph
        return self.units.choose(graph, weights, budget(self.units, graph, self.target_density))

    def _support(self, weights: Params) -> Mask:
        return masks.nonzero(weights, tuple(self.units.shapes(self.task.graph)))
