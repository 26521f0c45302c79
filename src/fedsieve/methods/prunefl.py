"""PruneFL: one client prunes at first, then all adapt the mask by what a weight gains for its cost.

Paper    Jiang et al., "Model Pruning Enables Efficient Federated Learning on Edge Devices", TNNLS
         2022 (specification rivals, section 3).
Symbols  w -> server.weights   M -> mask   g^2 -> importance   t_j -> cost of a weight, here 1
         c -> fixed_cost   Delta(M) / T(M) -> gain by time   zeta -> drop_share
Differs  seconds are not measured: every weight costs 1 and a round `fixed_cost` of all weights, so
         that results do not depend on the machine. Initial pruning takes `initial_rounds` rounds of
         one client, each with a reconfiguration, whatever its accuracy. Importance is of gradients
         as clipped. Defaults reconfigure more often, as fits a run of tens of rounds.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Dense, Examples, Kept, Mask, Params
from fedsieve.core.method import Batches, Cohort, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser, Slots, Tensors
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import layers, masks

HALVES_IN = 10_000  # rounds in which the share that may be dropped halves
PAPER = {
    "density_cap": 0.5,
    "fixed_cost": 0.5,
    "adjust_interval": 50,
    "lr": 0.001,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
    "weighting": "uniform",
}
CODE = {
    "density_cap": 1.0,
    "lr": 0.1,
    "schedule": "exponential(gamma=0.99993)",  # halves in 10 000 rounds
    "optimiser": "sgd",
    "weighting": "samples",
}


class Server(NamedTuple):
    weights: Params  # those outside the mask stay as they were last
    mask: Mask
    rounds: int


class State(NamedTuple):
    importance: Params  # gathered since it was last sent; empty at first


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    importance: Dense  # of all weights in rounds with a reconfiguration, else empty
    examples: Examples


@dataclass(frozen=True)
class Summing:
    """An optimiser that also sums the gradients it is given, those of masked weights too."""

    inner: Optimiser

    @property
    def slots(self) -> tuple[str, ...]:
        return (*self.inner.slots, "sum")

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        for total, grad in zip(slots[-1], grads, strict=True):
            total.add_(grad)
        self.inner.step(params, grads, slots[:-1], t, lr)


@register("prunefl")
@dataclass(frozen=True, kw_only=True)
class PruneFL(Method[Server, State, Down, Up]):
    """Adaptive pruning: weights are kept as long as they pay for the time they take."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER, "code": PAPER | CODE}
    task: Task
    density_cap: float = option(0.5, "largest share of weights that a reconfiguration fills up to")
    fixed_cost: float = option(1.0, "of a round, in units of the cost of all maskable weights")
    drop_share: float = option(0.3, "zeta: share of a layer's weights that each one may drop")
    adjust_interval: int | None = option(
        None, "rounds from one reconfiguration to the next; none: a tenth of the run"
    )
    initial_rounds: int | None = option(
        None, "first rounds, of one client, each with a reconfiguration; none: a tenth of the run"
    )
    exclude: tuple[str, ...] = option((), "layers that are never pruned")
    lr: float = option(1.0, "client learning rate")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("prunefl: density_cap", self.density_cap, 0, 1, above=True)
        in_range("prunefl: fixed_cost", self.fixed_cost, 0, above=True)
        in_range("prunefl: drop_share", self.drop_share, 0, 1, below=True)
        in_range("prunefl: lr", self.lr, 0, above=True)
        if self.adjust_interval is not None:
            in_range("prunefl: adjust_interval", self.adjust_interval, 1)
        if self.initial_rounds is not None:
            in_range("prunefl: initial_rounds", self.initial_rounds, 0)
        if self.clip_norm is not None:
            in_range("prunefl: clip_norm", self.clip_norm, 0, above=True)
        known = [x.name for x in self.task.graph.layers if x.weight in self.task.graph.maskable]
        for name in self.exclude:
            if name not in known:
                raise ConfigError(unknown("prunefl: exclude: layer", name, known))
        if not self._prunable:
            raise ConfigError("prunefl: exclude leaves no layer to prune. Use method=fedavg.")

    def in_run(self, rounds: int) -> Self:
        tenth = max(rounds // 10, 1)
        interval = tenth if self.adjust_interval is None else self.adjust_interval
        initial = tenth if self.initial_rounds is None else self.initial_rounds
        method = replace(super().in_run(rounds), adjust_interval=interval, initial_rounds=initial)
        if initial >= rounds > 1:
            warnings.warn(
                f"prunefl: initial_rounds={initial} and the run has {rounds}: one client alone "
                "trains all the time. Lower initial_rounds or ask for more rounds.",
                stacklevel=2,
            )
        times = sum(method._adjusts(done) for done in range(rounds))
        if (1 - self.drop_share) ** times > self.density_cap:
            warnings.warn(
                f"prunefl: {times} reconfigurations that drop {self.drop_share:g} each leave more "
                f"than density_cap={self.density_cap:g}. Lower adjust_interval, raise "
                "initial_rounds or ask for more rounds.",
                stacklevel=2,
            )
        return method

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        everything = {n: torch.ones_like(weights[n], dtype=torch.bool) for n in self._prunable}
        return Server(weights, everything, 0)

    def init_client(self, client: int, key: Key) -> State:
        return State({})

    def cohort(self, size: int, done: int) -> Cohort:
        """One client, always the same, prunes at first; then cohorts are drawn as ever."""
        return Cohort(1, draw=0) if done < (self.initial_rounds or 0) else Cohort(size, draw=done)

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.mask, self.model(server, ()), server.rounds)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        trained = local.train(
            self.task.loss,
            down.weights,
            data.work(key),
            Summing(self.optimiser),
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
            project=partial(masks.apply, mask=down.mask),
        )
        importance = {
            name: trained.processed * trained.moments[0][f"sum/{name}"].square().contiguous()
            for name in down.weights
            if name not in self.task.buffers
        }
        if state.importance:
            importance = {n: q + state.importance[n] for n, q in importance.items()}
        sent, left = (importance, {}) if self._adjusts(down.rounds) else ({}, importance)
        seen = trained.processed
        metrics = Metrics(seen, {"train_loss": trained.loss}, down.mask, dense_gradients=seen)
        return Up(down.mask, trained.params, sent, data.examples), State(left), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        mean = tree.weighted_mean(
            (r.weights, r.examples if self.weighting == "samples" else 1) for r in round.replies
        )
        kept = {n: torch.where(server.mask[n], mean[n], server.weights[n]) for n in server.mask}
        weights, mask = mean | kept, server.mask
        if self._adjusts(server.rounds):
            total = tree.weighted_mean(((r.importance, 1) for r in round.replies), by=1)
            share = self.drop_share * 0.5 ** (server.rounds / HALVES_IN)
            mask = self.reconfigured(weights, mask, total, share)
        return Server(weights, mask, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params:
        return masks.apply(server.weights, server.mask)

    def reconfigured(self, weights: Params, mask: Mask, importance: Params, share: float) -> Mask:
        """The mask without a share of its smallest weights, and with all that pay for themselves.

        Of dropped and missing weights the most important are taken, as long as each gains more for
        its cost than the model has so far.
        """
        drops = {n: masks.count_at(share, kept) for n, kept in layers.sizes(mask).items()}
        kept = layers.dropped(weights, mask, drops)
        gain = sum(float(q[kept[n]].sum() if n in kept else q.sum()) for n, q in importance.items())
        size = sum(bits.numel() for bits in kept.values())
        count = sum(layers.sizes(kept).values())
        score = torch.cat([torch.where(kept[n], -1, importance[n]).reshape(-1) for n in kept])
        room = max(masks.count_at(self.density_cap, size) - count, 0)
        taken = min(_worthwhile(score, gain, self.fixed_cost * size + count), room)
        chosen = torch.split(masks.largest(score, taken), [bits.numel() for bits in kept.values()])
        return {
            n: bits | more.view_as(bits)
            for (n, bits), more in zip(kept.items(), chosen, strict=True)
        }

    @property
    def _prunable(self) -> list[str]:
        graph = self.task.graph
        layers = [x for x in graph.layers if x.name not in self.exclude]
        return [x.weight for x in layers if x.weight in graph.maskable]

    def _adjusts(self, done: int) -> bool:
        """Whether the round after `done` rounds ends with a reconfiguration."""
        since = done - (self.initial_rounds or 0)
        return since < 0 or (since > 0 and since % (self.adjust_interval or 1) == 0)


def _worthwhile(score: Tensor, gain: float, cost: float) -> int:
    """How many of the largest scores are each above the ratio of gain to cost before it."""
    ordered = torch.sort(score[score > 0], descending=True).values.double()
    before = gain + torch.cumsum(ordered, 0) - ordered
    costs = cost + torch.arange(len(ordered))
    is_worth = ordered > before / costs
    return len(ordered) if bool(is_worth.all()) else int((~is_worth).nonzero()[0, 0])
