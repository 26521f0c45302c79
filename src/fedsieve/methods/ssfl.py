"""SSFL: one mask from the saliencies of all clients before training, then FedAvg within it.

Paper    Ohib et al., "SSFL: Discovering Sparse Unified Subnetworks at Initialization for Efficient
         Federated Learning", TMLR 2026 (specification rivals, section 9).
Symbols  s_k = |g_k * w_0| -> up.saliency   p_k = n_k / n -> up.examples   m -> server.mask
         w -> server.weights
Differs  the first round of a run is the one that finds the mask: nobody trains in it. By default a
         usual cohort is asked for saliencies: those of all clients, as in the paper (preset), cost
         a dense message each and gave no better mask. Preset `code` counts clients equally in the
         mean of saliencies, as the published program does. Gradients are clipped, and rates fall
         to a fiftieth over the run.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Dense, Examples, Kept, Mask, Params
from fedsieve.core.method import (
    EVERYONE,
    Batch,
    Batches,
    Cohort,
    Method,
    Metrics,
    Round,
    Task,
    register,
)
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import masks

PAPER = {
    "target_density": 0.5,
    "scored_by": "all",
    "lr": 0.1,
    "clip_norm": None,
    "schedule": "exponential(gamma=0.998)",
    "optimiser": "sgd(weight_decay=0.0005)",
}
CODE = PAPER | {"target_density": 0.3, "saliency_weighting": "uniform"}


class Server(NamedTuple):
    weights: Params
    mask: Mask  # {} before it is found
    rounds: int


class Down(NamedTuple):
    mask: Bits  # {}: weights are dense, and their saliencies asked for
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]  # {} in the first round
    saliency: Dense  # {} in all others
    examples: Examples


@register("ssfl")
@dataclass(frozen=True, kw_only=True)
class SSFL(Method[Server, tuple[()], Down, Up]):
    """Salient sparse federated learning: a subnetwork found at initialisation, kept for good."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER, "code": CODE}
    task: Task
    target_density: float = option(0.5, "share of the maskable weights in the subnetwork")
    scored_by: Literal["all", "cohort"] = option(
        "cohort",
        "whose saliencies make the mask: a usual cohort's or, as in the paper, all clients'",
    )
    saliency_weighting: Literal["samples", "uniform"] = option(
        "samples", "saliencies count by examples or equally"
    )
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient of weights; the paper: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients' models count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("ssfl: target_density", self.target_density, 0, 1, above=True)
        in_range("ssfl: lr", self.lr, 0, above=True)
        in_range("ssfl: clip_norm", 1 if self.clip_norm is None else self.clip_norm, 0, above=True)
        if not self._kept:
            raise ConfigError(
                f"ssfl: target_density={self.target_density} keeps none of the "
                f"{self.task.graph.maskable_size} maskable weights. Raise it."
            )

    def in_run(self, rounds: int) -> Self:
        if rounds < 2:
            warnings.warn(
                "ssfl: the first round finds the mask and trains nothing, and the run has one "
                "round. Ask for more rounds.",
                stacklevel=2,
            )
        return super().in_run(rounds)

    def cohort(self, size: int, done: int) -> Cohort:
        finds_mask = done == 0 and self.scored_by == "all"
        return EVERYONE if finds_mask else super().cohort(size, done)

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), {}, 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.mask, server.weights, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        if not down.mask:
            saliency, examples = self._saliency(down.weights, data.draw(fold(key, "saliency")), key)
            return Up({}, {}, saliency, data.examples), state, Metrics(examples, {})

        def loss(weights: Params, batch: Batch, key: Key) -> Tensor:
            return self.task.loss(masks.apply(weights, down.mask), batch, key)

        trained = local.train(
            loss,
            down.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
        )
        metrics = Metrics(trained.processed, {"train_loss": trained.loss}, down.mask)
        return Up(down.mask, trained.params, {}, data.examples), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        if not server.mask:
            score = tree.weighted_mean(
                (r.saliency, r.examples if self.saliency_weighting == "samples" else 1)
                for r in round.replies
            )
            mask = masks.top_k(score, tuple(score), self._kept)
            return Server(masks.apply(server.weights, mask), mask, server.rounds + 1)
        mean = tree.weighted_mean(
            (r.weights, r.examples if self.weighting == "samples" else 1) for r in round.replies
        )
        return Server(mean, server.mask, server.rounds + 1)

    def model(self, server: Server, state: tuple[()]) -> Params:
        return server.weights

    @property
    def _kept(self) -> int:
        return masks.count_at(self.target_density, self.task.graph.maskable_size)

    def _saliency(self, weights: Params, batch: Batch, key: Key) -> tuple[Params, int]:
        """|gradient * weight| of every maskable weight on one mini-batch, and its examples."""
        slope, _ = local.gradient(self.task.loss, weights, batch, key=key, fixed=self.task.buffers)
        found = {n: (slope[n] * weights[n]).abs() for n in self.task.graph.maskable}
        return found, batch.y.shape[0]
