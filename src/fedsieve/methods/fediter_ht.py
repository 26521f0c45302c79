"""FedIter-HT and Fed-HT: hard thresholding to m weights, at every step or after every average.

Paper    Tong et al., "Federated Nonconvex Sparse Learning", 2022 (specification flops, section 6).
Symbols  H_m -> masks.top_k   m = floor(rho P) -> kept weights   rho -> target_density
Differs  deep nets start from the m largest initial weights: 0 is a stationary point of theirs;
         `start="zero"` is the paper's start. Density falls from 1 to rho by gradual pruning
         (`ramp`), gradients are clipped and rates fall over the run; preset `paper` has rho from
         the first round on, with Adam: there plain SGD rarely brings a pruned weight of a deep net
         back above the threshold. Biases are thresholded with `units=weights(biases=true)`, as in
         FLoPS; normalisation never is. Fed-HT has a higher density by default: what clients train
         outside the mask is cut away again after every mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params
from fedsieve.core.method import Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule, gradual, ramp_in_run
from fedsieve.sparsity import masks
from fedsieve.sparsity.units import Weights, budget, level, regrown

PAPER = {
    "target_density": 0.1,
    "ramp": 0,
    "lr": 0.01,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "adam",
}


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
    examples: Examples


@register("fediter_ht")
@dataclass(frozen=True, kw_only=True)
class FedIterHT(Method[Server, tuple[()], Down, Up]):
    """Top-m weights after every local step and after every average."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    thresholds_steps: ClassVar[bool] = True  # after every local step, not only after the average
    target_density: float = option(0.15, "rho: share of what is thresholded that is kept")
    units: Weights = option(
        Weights(biases=False), "what is thresholded: weights, or their biases too"
    )
    start: Literal["init", "level", "zero"] = option(
        "init", "the largest of all, of every layer, or all 0"
    )
    ramp: int | None = option(
        None, "rounds until density has fallen from 1; none: 9/10 of all; paper: 0"
    )
    lr: float = option(1.0, "client learning rate")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("target_density", self.target_density, 0, 1, above=True)
        in_range("lr", self.lr, 0, above=True)
        in_range("ramp", self.ramp or 0, 0)
        in_range("clip_norm", 1 if self.clip_norm is None else self.clip_norm, 0, above=True)
        budget(self.units, self.task.graph, self.target_density)

    def in_run(self, rounds: int) -> Self:
        return replace(super().in_run(rounds), ramp=ramp_in_run(self.ramp, rounds))

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        if self.start == "zero":
            zeros = {n: torch.zeros_like(weights[n]) for n in self.units.shapes(self.task.graph)}
            return Server(weights | zeros, 0)
        if self.start == "level":
            chosen = self._largest(level(self.task.graph, weights), 0)
            grown = regrown(self.task.graph, weights, masks.apply(weights, chosen))
            return Server(masks.apply(grown, chosen), 0)
        return Server(self._threshold(weights, 0), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, key: Key) -> Down:
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
            clip_norm=self.clip_norm,
            project=partial(self._threshold, done=down.rounds) if self.thresholds_steps else None,
        )
        support = self._support(trained.params)
        metrics = Metrics(trained.processed, {"train_loss": trained.loss}, support)
        return Up(support, trained.params, data.examples), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        mean = tree.weighted_mean(
            (r.weights, r.examples if self.weighting == "samples" else 1) for r in round.replies
        )
        return Server(self._threshold(mean, server.rounds + 1), server.rounds + 1)

    def model(self, server: Server, state: tuple[()]) -> Params:
        return server.weights

    def _threshold(self, weights: Params, done: int) -> Params:
        """H_m: all but the m largest become 0."""
        return masks.apply(weights, self._largest(weights, done))

    def _largest(self, weights: Params, done: int) -> Mask:
        graph, density = self.task.graph, gradual(self.target_density, done, self.ramp or 0)
        return self.units.choose(graph, weights, budget(self.units, graph, density))

    def _support(self, weights: Params) -> Mask:
        return masks.nonzero(weights, tuple(self.units.shapes(self.task.graph)))


@register("fedht")
@dataclass(frozen=True, kw_only=True)
class FedHT(FedIterHT):
    """Top-m weights after every average alone; clients train and send dense models."""

    thresholds_steps: ClassVar[bool] = False
    target_density: float = option(0.4, "rho: share of what is thresholded that is kept")
