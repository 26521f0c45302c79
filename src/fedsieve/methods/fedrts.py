"""FedRTS: which weights are kept is drawn from what rounds so far say of each of them.

Paper    Huang et al., "FedRTS: Federated Robust Pruning via Combinatorial Thompson Sampling",
         NeurIPS 2025 (specification rivals, section 11).
Symbols  m -> server.mask   alpha, beta -> server.belief   lambda -> evidence
         gamma -> voices   K - kappa = floor(churn_t K) -> _churned   Delta T, T_end -> every, until
Differs  adjustments are spread over the run by default, preset `paper` has the rounds of the
         published program. Gradients are clipped, and rates fall over the run.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import keys, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import layers, masks
from fedsieve.sparsity.layers import Allocation, Counts

PAPER = {
    "target_density": 0.1,
    "every": 10,
    "until": 300,
    "lr": 0.001,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "adam(weight_decay=0.001, amsgrad=True)",
}


class Belief(NamedTuple):
    """Parameters of the Beta distribution of each maskable weight."""

    alpha: Params
    beta: Params


class Server(NamedTuple):
    weights: Params
    mask: Mask
    belief: Belief
    rounds: int


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    candidates: Bits  # largest gradients outside the mask; {} unless the round adjusts it
    examples: Examples


@register("fedrts")
@dataclass(frozen=True, kw_only=True)
class FedRTS(Method[Server, tuple[()], Down, Up]):
    """Sparse training whose mask is adjusted by Thompson sampling."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    target_density: float = option(0.5, "share of the maskable weights that is kept")
    allocation: Allocation = option("erk", "how that is shared out among layers")
    churn: float = option(0.2, "share of the kept weights in question at first; falls to 0")
    every: int | None = option(None, "rounds from one adjustment to the next; none: 1/15 of all")
    until: int | None = option(None, "round of the last adjustment; none: 3/5 of all")
    voices: float = option(0.5, "gamma: how much single clients count beside their mean")
    evidence: float = option(10.0, "lambda: by how much a round moves alpha and beta")
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient of weights; the paper: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("fedrts: target_density", self.target_density, 0, 1, above=True)
        in_range("fedrts: churn", self.churn, 0, 1)
        in_range("fedrts: every", 1 if self.every is None else self.every, 1)
        in_range("fedrts: until", self.until or 0, 0)
        in_range("fedrts: voices", self.voices, 0, 1)
        in_range("fedrts: evidence", self.evidence, 0, above=True)
        in_range("fedrts: lr", self.lr, 0, above=True)
        limit = 1 if self.clip_norm is None else self.clip_norm
        in_range("fedrts: clip_norm", limit, 0, above=True)

    def in_run(self, rounds: int) -> Self:
        every = max(rounds // 15, 1) if self.every is None else self.every
        until = 3 * rounds // 5 if self.until is None else self.until
        if rounds > 1 and min(until, rounds) < every:
            warnings.warn(
                f"fedrts: the mask is adjusted every {every} rounds up to round {until}, and the "
                f"run has {rounds}: it stays as it is drawn. Lower every, or raise until.",
                stacklevel=2,
            )
        return replace(super().in_run(rounds), every=every, until=until)

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        counts = layers.allocate(self.task.graph, self.target_density, self.allocation)
        mask = layers.largest(weights, counts)
        ones = {n: torch.ones_like(weights[n]) for n in mask}
        return Server(masks.apply(weights, mask), mask, Belief(ones, dict(ones)), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.mask, server.weights, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
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
        candidates, processed = Mask(), trained.processed
        if self._adjusts(down.rounds + 1):
            batch = data.draw(fold(key, "candidates"))
            slope, _ = local.gradient(
                self.task.loss, trained.params, batch, key=key, fixed=self.task.buffers
            )
            more = layers.grown(slope, down.mask, self._churned(down.mask, down.rounds + 1))
            candidates = {n: bits & ~down.mask[n] for n, bits in more.items()}
            processed += len(batch.y)
        metrics = Metrics(
            processed, {"train_loss": trained.loss}, down.mask, processed - trained.processed
        )
        return Up(down.mask, trained.params, candidates, data.examples), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        counts = [r.examples if self.weighting == "samples" else 1 for r in round.replies]
        shares = [count / sum(counts) for count in counts]
        mean = tree.weighted_mean(zip((r.weights for r in round.replies), shares, strict=True))
        done = server.rounds + 1
        if done > (self.until or 0):
            return server._replace(weights=mean, rounds=done)
        out = self._churned(server.mask, done)
        own = [layers.dropped(r.weights, server.mask, out) for r in round.replies]
        outcome = self._outcome(layers.dropped(mean, server.mask, out), own, shares)
        belief = self._moved(server.belief, outcome, server.mask)
        mask = server.mask
        if self._adjusts(done):
            unknown = {n: torch.full((), 0.5) for n in mask}
            outcome = self._outcome(unknown, [r.candidates for r in round.replies], shares)
            belief = self._moved(belief, outcome, {n: ~bits for n, bits in mask.items()})
            mask = layers.largest(_draw(belief, fold(key, "mask")), layers.sizes(mask))
        return Server(masks.apply(mean, mask), mask, belief, done)

    def model(self, server: Server, state: tuple[()]) -> Params:
        return server.weights

    def _adjusts(self, number: int) -> bool:
        """Whether round `number`, from 1 on, adjusts the mask."""
        return number <= (self.until or 0) and number % (self.every or 1) == 0

    def _churned(self, mask: Mask, number: int) -> Counts:
        """How many weights of each layer are in question in round `number`: K - kappa."""
        falling = (1 + math.cos(math.pi * number / self.until)) / 2 if self.until else 0.0
        return {n: int(self.churn * falling * k) for n, k in layers.sizes(mask).items()}

    def _outcome(
        self, mean: Mapping[str, Tensor], own: Sequence[Mask], shares: Sequence[float]
    ) -> Params:
        """How well each weight did in [0, 1], by the mean of models and by clients' own."""
        votes = tree.weighted_mean(
            ({n: bits.float() for n, bits in one.items()}, share)
            for one, share in zip(own, shares, strict=True)
        )
        return {n: (1 - self.voices) * mean[n] + self.voices * v for n, v in votes.items()}

    def _moved(self, belief: Belief, outcome: Params, where: Mask) -> Belief:
        """The distributions after outcomes, of which those outside `where` say nothing."""
        step = {n: self.evidence * bits for n, bits in where.items()}
        return Belief(
            {n: a + step[n] * outcome[n] for n, a in belief.alpha.items()},
            {n: b + step[n] * (1 - outcome[n]) for n, b in belief.beta.items()},
        )


def _draw(belief: Belief, key: Key) -> Params:
    """A draw from the Beta distribution of each weight."""
    return {
        n: torch.from_numpy(
            keys.generator(fold(key, n)).beta(a.numpy(), belief.beta[n].numpy())
        ).float()
        for n, a in belief.alpha.items()
    }
