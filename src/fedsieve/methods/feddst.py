"""FedDST: one sparse mask for all, which clients readjust by magnitude and gradient.

Paper    Bibikar et al., "Federated Dynamic Sparse Training: Computing Less, Communicating Less, Yet
         Learning Better", AAAI 2022, Algorithm 1 (specification rivals, section 6).
Symbols  theta -> weights   m -> mask   1 - S -> target_density   alpha -> adjust_share
         delta R -> adjust_interval   R_end -> adjust_until   mu -> proximal
Differs  layers grow only weights outside the mask, and so keep their counts; the program may choose
         kept ones. It readjusts in the last of ten epochs, ours in the last whatever their number.
         Of weights that are 0 the server keeps those that most clients grew. Defaults spread
         density by ERK proper, readjust a larger share more often, as fits tens of rounds, and clip
         gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import layers, masks
from fedsieve.sparsity.layers import Allocation, Counts, Part

TIE = 1e-12  # what a client's vote adds to a weight's magnitude: decides between zeros alone
PAPER = {
    "target_density": 0.5,
    "allocation": "erk_feddst",
    "adjust_share": 0.01,
    "adjust_interval": 15,
    "decay": "constant",
    "lr": 0.01,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
    "weighting": "uniform",
}
CODE = {
    "target_density": 0.2,
    "optimiser": "sgd(momentum=0.9, weight_decay=0.001)",
    "weighting": "samples",
}


class Server(NamedTuple):
    weights: Params
    mask: Mask
    rounds: int


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    examples: Examples


@register("feddst")
@dataclass(frozen=True, kw_only=True)
class FedDST(Method[Server, tuple[()], Down, Up]):
    """Dynamic sparse training with one mask: a union of the clients', pruned back by magnitude."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER, "code": PAPER | CODE}
    task: Task
    target_density: float = option(0.5, "1 - S: share of weights that is kept, at every moment")
    allocation: Allocation = option("erk", "how it is spread over layers")
    adjust_share: float = option(0.4, "alpha: of the kept weights, how many clients replace")
    adjust_interval: int = option(1, "rounds from one readjustment to the next")
    adjust_until: int | None = option(None, "rounds with readjustments; none: half of the run")
    adjust_epoch: int = option(-1, "after which local epoch, counted from 0; -1: the last")
    decay: Literal["constant", "cosine"] = option("cosine", "of adjust_share, to adjust_until")
    proximal: float = option(0.0, "mu: weight of |w - w_server|^2 / 2 beside the mean loss")
    lr: float = option(1.0, "client learning rate")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("feddst: target_density", self.target_density, 0, 1, above=True)
        in_range("feddst: adjust_share", self.adjust_share, 0, 1, below=True)
        in_range("feddst: adjust_interval", self.adjust_interval, 1)
        in_range("feddst: adjust_epoch", self.adjust_epoch, -1)
        in_range("feddst: proximal", self.proximal, 0)
        in_range("feddst: lr", self.lr, 0, above=True)
        if self.adjust_until is not None:
            in_range("feddst: adjust_until", self.adjust_until, 0)
        if self.clip_norm is not None:
            in_range("feddst: clip_norm", self.clip_norm, 0, above=True)

    def in_run(self, rounds: int) -> Self:
        until = rounds // 2 if self.adjust_until is None else self.adjust_until
        return replace(super().in_run(rounds), adjust_until=until)

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        mask = layers.largest(weights, self._counts())
        return Server(masks.apply(weights, mask), mask, 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.mask, server.weights, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        batches, mask = list(data.work(key)), down.mask
        cut = self._cut(data.epochs, len(batches)) if self._adjusts(down.rounds) else len(batches)
        first = self._train(down, down.weights, mask, batches[:cut], (), fold(key, "first"))
        rest, scored = local.Trained(first.params, first.moments, 0.0, 0, 0), 0
        if self._adjusts(down.rounds):
            batch, growth = batches[cut - 1], fold(key, "growth")
            scored = len(batch.y)
            gradient, _ = local.gradient(
                self.task.loss, first.params, batch, key=growth, fixed=self.task.buffers
            )
            mask = self._readjusted(first.params, gradient, mask, down.rounds)
            start = masks.apply(first.params, mask)
            rest = self._train(down, start, mask, batches[cut:], first.moments, fold(key, "rest"))
        loss = (first.loss * first.steps + rest.loss * rest.steps) / len(batches)
        processed = first.processed + rest.processed + scored
        metrics = Metrics(processed, {"train_loss": loss}, down.mask, scored)
        return Up(mask, rest.params, data.examples), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        parts = [
            Part(r.weights, r.mask, r.examples if self.weighting == "samples" else 1)
            for r in round.replies
        ]
        nothing = {name: torch.zeros_like(value) for name, value in server.weights.items()}
        mean = layers.overlap_mean(parts, otherwise=nothing)
        votes = masks.votes([part.mask for part in parts])
        scores = {name: mean[name].abs() + TIE * held for name, held in votes.items()}
        mask = layers.largest(scores, self._counts())
        return Server(masks.apply(mean, mask), mask, server.rounds + 1)

    def model(self, server: Server, state: tuple[()]) -> Params:
        return server.weights

    def _counts(self, replaced: float = 0.0) -> Counts:
        """How many weights of each layer are kept, while a share of them is being replaced."""
        density = self.target_density * (1 - replaced)
        return layers.allocate(self.task.graph, density, self.allocation)

    def _adjusts(self, done: int) -> bool:
        return done < (self.adjust_until or 0) and done % self.adjust_interval == 0

    def _cut(self, epochs: int, batches: int) -> int:
        """The mini-batches before the mask is readjusted; an epoch too many is the last."""
        last = self.adjust_epoch < 0 or self.adjust_epoch >= epochs - 1
        return batches if last else max((self.adjust_epoch + 1) * batches // epochs, 1)

    def _readjusted(self, weights: Params, gradient: Params, mask: Mask, done: int) -> Mask:
        """A share of the smallest weights makes room for as many of the largest gradients."""
        factor = Cosine(self.adjust_until).factor(done) if self.decay == "cosine" else 1.0
        fewer, have = self._counts(self.adjust_share * factor), layers.sizes(mask)
        drops = {name: have[name] - fewer[name] for name in have}
        return layers.grown(gradient, layers.dropped(weights, mask, drops), drops)

    def _train(
        self,
        down: Down,
        start: Params,
        mask: Mask,
        batches: list[Batch],
        moments: tuple[Moments, ...],
        key: Key,
    ) -> local.Trained[Params]:
        return local.train(
            partial(self._objective, centre=down.weights),
            start,
            batches,
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            moments=moments,
            clip_norm=self.clip_norm,
            project=partial(masks.apply, mask=mask),
        )

    def _objective(self, weights: Params, batch: Batch, key: Key, *, centre: Params) -> Tensor:
        loss = self.task.loss(weights, batch, key)
        if self.proximal == 0:
            return loss
        moving = {n: w for n, w in weights.items() if n not in self.task.buffers}
        return loss + self.proximal / 2 * tree.sq_dist(moving, centre)
