"""FedSparse: a spike-and-slab prior prunes filters and features; sparse in both directions.

Paper    "Federated averaging as expectation-maximization", 2020, Algorithm 1 (specification
         fedsparse, sections 2 to 5).
Symbols  w -> weights   v -> raw_thresholds   tau = softplus(v)   T -> temperature   theta, pi ->
         probability of an open gate on server and client   z -> gates   lambda_0 -> gate_cost
         lambda -> proximal   eps -> prune_below
Differs  signs and coefficients as in specification fedsparse, section 9. The clients' rate of v is
         the paper's 1e-3 at ten local steps and falls with the root of their number, which keeps
         sparsity nearly the same (docs, What decides sparsity). Biases and normalisation have no
         gates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch.nn.functional import softplus

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.graph import Layer
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params
from fedsieve.core.method import Batches, Method, Metrics, Round, register
from fedsieve.core.options import in_range, option
from fedsieve.inference.spike_and_slab import Drawn, Gated, Slab, SpikeAndSlab, inverse_softplus
from fedsieve.methods.em import HardEM, objective
from fedsieve.methods.fedavg import Memory, Own
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Adamax, Moments, Optimiser, init_moments, update
from fedsieve.optim.schedules import gradual, ramp_in_run
from fedsieve.sparsity import masks

OPEN = -10.0  # v of groups that stay: a threshold of 5e-5
PAPER = {
    "target_density": None,
    "lr": 0.05,
    "clip_norm": None,
    "schedule": "constant",
    "server_optimiser": "adam",
    "server_lr": 1e-3,
    "weighting": "uniform",
}


class Server(NamedTuple):
    weights: Params
    raw_thresholds: Params
    alive: Mask  # groups not pruned
    moments: Moments  # of the weights
    threshold_moments: Moments
    rounds: int


class Down(NamedTuple):
    alive: Bits
    weights: Annotated[Params, Kept(where="alive")]
    raw_thresholds: Annotated[Params, Kept(where="alive")]
    rounds: Count


class Up(NamedTuple):
    gates: Bits
    weights: Annotated[Params, Kept(where="gates")]
    examples: Examples


@register("fedsparse")
@dataclass(frozen=True, kw_only=True)
class FedSparse(HardEM, Method[Server, Memory, Down, Up]):
    """Federated averaging with gates over filters and features; sparse in both directions."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    target_density: float | None = option(
        0.7, "share of gated weights left; none: as the prior has it"
    )
    ramp: int | None = option(None, "rounds until it has come to that; none: 2/3 of all")
    gate_cost: float = option(5e-6, "lambda_0, of one open weight; the paper: 5e-7, 5e-6, 5e-5")
    cross_entropy: float = option(1e-4, "weight of the tie of a client's gates to the server's")
    proximal: float = option(0.0, "lambda: tie of a client's open weights to the server's")
    groups: Literal["features", "units", "weights"] = option(
        "features", "of linear layers; see docs"
    )
    ungated: tuple[str, ...] = option((), "weights without gates, such as fc.weight")
    theta: Literal["thresholds", "free"] = option("thresholds", "free: M-step in closed form")
    location: Literal["logit", "shifted"] = option(
        "logit", "of gates in training; shifted: P(z > 0) = pi"
    )
    temperature: float = option(1e-3, "T")
    theta_start: float = option(0.99, "theta of all groups at the start")
    prune_below: float = option(0.1, "eps: a group with a smaller theta is pruned for good")
    threshold_lr: float = option(
        1e-3, "client rate of v at 10 local steps; at n times sqrt(10 / n)"
    )
    threshold_optimiser: Optimiser = option(Adamax(), "of v on clients and server")
    server_optimiser: Optimiser = option(SGD(), "of w")
    server_lr: float = option(1.0, "of w on the server")
    server_threshold_lr: float = option(1e-2, "of v on the server")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gate_cost", "cross_entropy", "proximal", "threshold_lr"):
            in_range(f"fedsparse: {name}", getattr(self, name), 0)
        in_range("fedsparse: ramp", self.ramp or 0, 0)
        if self.target_density is not None:
            in_range("fedsparse: target_density", self.target_density, 0, 1, above=True)
        for name in ("temperature", "server_lr", "server_threshold_lr"):
            in_range(f"fedsparse: {name}", getattr(self, name), 0, above=True)
        in_range("fedsparse: theta_start", self.theta_start, 0, 1, above=True, below=True)
        in_range("fedsparse: prune_below", self.prune_below, 0, self.theta_start, below=True)
        for name in self.ungated:
            if name not in self.task.graph.maskable:
                where = unknown("weight", name, self.task.graph.maskable)
                raise ConfigError(f"fedsparse: ungated: {where}")

    def in_run(self, rounds: int) -> Self:
        return replace(super().in_run(rounds), ramp=ramp_in_run(self.ramp, rounds, parts=3))

    @property
    def prior(self) -> SpikeAndSlab:
        return SpikeAndSlab(
            {x.weight: self._axes(x.kind, len(x.shape)) for x in self._gated_layers()},
            gate_cost=self.gate_cost,
            cross_entropy=self.cross_entropy,
            precision=self.proximal,
            temperature=self.temperature,
            is_free=self.theta == "free",
            is_shifted=self.location == "shifted",
        )

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        smallest = 1e-4 if self.groups == "weights" else 1e-3  # tau_min
        raw = self.prior.open(weights, self.theta_start, smallest).raw_thresholds
        return Server(
            weights,
            raw,
            {n: torch.ones_like(v, dtype=torch.bool) for n, v in raw.items()},
            init_moments(self.server_optimiser, self.trainable(weights)),
            init_moments(self.threshold_optimiser, raw),
            0,
        )

    def init_client(self, client: int, key: Key) -> Memory:
        return self.remember({})

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.alive, server.weights, server.raw_thresholds, server.rounds)

    def client_update(
        self, down: Down, state: Memory, data: Batches, key: Key
    ) -> tuple[Up, Memory, Metrics]:
        prior = self.prior
        start = prior.close(Gated(down.weights, down.raw_thresholds), down.alive)
        slab = Slab(self.trainable(down.weights), prior.logits(start))
        moving = self.threshold_lr * sqrt(10 / max(data.steps, 1))
        trained = local.train(
            objective(self.task, prior, slab),
            start,
            data.work(key),
            (self.optimiser, self.threshold_optimiser),
            lr=(self.rate(down.rounds), moving if self._is_pruning(down.rounds) else 0.0),
            key=key,
            fixed=self.task.buffers,
            clip_norm=(self.clip_norm, None),
        )
        drawn = prior.draw(trained.params, key)
        mask = {n: a.expand_as(down.weights[n]) for n, a in down.alive.items()}
        metrics = Metrics(trained.processed, {"train_loss": trained.loss}, mask)
        up = Up(drawn.gates, drawn.weights, data.examples)
        return up, self.remember(drawn.weights), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies, shares = round.replies, self.shares(round.replies)
        prior, moments, raw_moments = self.prior, server.moments, server.threshold_moments
        centre = Gated(self.trainable(server.weights), server.raw_thresholds)
        drawn = [Drawn(self.trainable(r.weights), r.gates) for r in replies]
        if prior.is_free:
            weights, raw = prior.m_step(centre, drawn, shares, self.theta_start)
        else:
            gradient = prior.pseudo_gradient(centre, drawn, shares)
            pull = masks.apply(gradient.raw_thresholds, server.alive)
            weights, moments = update(
                self.server_optimiser, centre.weights, gradient.weights, moments, self.server_lr
            )
            raw, raw_moments = update(
                self.threshold_optimiser,
                centre.raw_thresholds,
                pull,
                raw_moments,
                self.server_threshold_lr,
            )
        if self.target_density is None:
            logits = prior.logits(Gated(weights, raw))
            cut = log(self.prune_below / (1 - self.prune_below)) if self.prune_below else -torch.inf
            alive = {n: a & (logits[n] > cut) for n, a in server.alive.items()}
        else:
            density = gradual(self.target_density, server.rounds + 1, self.ramp or 0)
            alive, raw = self._strongest(server.alive, Gated(weights, raw), density)
        if not self._is_pruning(server.rounds + 1):
            raw = {n: torch.full_like(v, OPEN) for n, v in raw.items()}
        return Server(
            masks.apply(weights, alive) | self.statistics(replies, shares),
            raw,
            alive,
            _without(moments, alive),
            _without(raw_moments, alive),
            server.rounds + 1,
        )

    def model(self, server: Server, state: Memory) -> Params | None:
        return (state.weights or None) if isinstance(state, Own) else server.weights

    def _is_pruning(self, done: int) -> bool:
        """Whether groups are still pruned after `done` rounds; then what is left is trained."""
        return self.target_density is None or done < (self.ramp or 0)

    def _strongest(self, before: Mask, at: Gated, density: float) -> tuple[Mask, Params]:
        """The groups that stand highest above their thresholds, at least one of each layer.

        Returns them with v, lowered where norms have fallen below their thresholds.
        """
        norms = self.prior.norms(at.weights)
        ratio = {n: norms[n] / softplus(v) for n, v in at.raw_thresholds.items()}
        if self.prior.is_free:  # theta has no thresholds: the likeliest groups
            ratio = {n: 1 + torch.sigmoid(logit) for n, logit in self.prior.logits(at).items()}
        ranks = {n: x.where(before[n], -1.0) for n, x in ratio.items()}
        flat = torch.cat([x.flatten() for x in ranks.values()])
        sizes = torch.cat(
            [torch.full((x.numel(),), at.weights[n].numel() // x.numel()) for n, x in ranks.items()]
        )
        order = flat.argsort(descending=True, stable=True)
        order = order[flat[order] >= 0]
        fits = sizes[order].cumsum(0) <= density * sizes.sum()
        chosen = torch.zeros_like(flat, dtype=torch.bool)
        chosen[order[fits]] = True
        alive = {}
        parts = torch.split(chosen, [x.numel() for x in ratio.values()])
        for name, part in zip(ratio, parts, strict=True):
            part[ranks[name].argmax()] = True
            alive[name] = part.view(ratio[name].shape)
        opened = {n: inverse_softplus((0.9 * norm).clamp(min=1e-4)) for n, norm in norms.items()}
        raw = {n: torch.where(ratio[n] < 1, opened[n], v) for n, v in at.raw_thresholds.items()}
        return alive, raw

    def _gated_layers(self) -> list[Layer]:
        return [
            x
            for x in self.task.graph.layers
            if x.kind != "embedding" and x.weight not in self.ungated
        ]

    def _axes(self, kind: str, dims: int) -> tuple[int, ...]:
        """A filter of a convolution; an input feature or an output unit of a linear layer."""
        if self.groups == "weights":
            return ()
        if kind in {"conv", "depthwise"} or self.groups == "units":
            return tuple(range(1, dims))
        return (0,)


def _without(moments: Moments, alive: Mask) -> Moments:
    """Moments of pruned groups are 0."""
    return {
        path: m.where(alive[name], 0) if (name := path.partition("/")[2]) in alive else m
        for path, m in moments.items()
    }
