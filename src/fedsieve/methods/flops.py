"""FLoPS: gates and weights by synchronous gradient averaging under a constraint on density.

Paper    "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025,
         Algorithm 1 (specification flops, sections 1 to 4); Algorithm 2 is in `flops_pa`.
Symbols  w, theta-tilde -> weights   a, phi -> gate_logits   z -> gates   theta = w z -> effective
         rho -> target_density   lambda -> dual   L -> logit_limit   r -> scale_rate   n(B) -> hold
         E -> rounds / hold   prune start -> scale_from   eta_w, eta_a, eta_lambda -> lr, gate_lr,
         dual_lr
Differs  a round is one gradient step, its cohort is held for n(B) of them. The paper's scaling
         rule cannot prune (section 4): the additive one is the default. Weights start as the
         model's own initialisation. Normalisation has no gate. P and densities count weights that
         may be masked and their biases; with gates of channels the weights alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import keys, tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Change, Count, Dense, Examples, Mask, Params
from fedsieve.core.method import (
    Batch,
    Batches,
    Cohort,
    Method,
    Metrics,
    Report,
    Round,
    Task,
    register,
)
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, ascend
from fedsieve.optim.schedules import Cosine, Schedule, gradual, ramp_in_run
from fedsieve.sparsity import masks
from fedsieve.sparsity.hard_concrete import HardConcrete
from fedsieve.sparsity.units import Units, Weights, budget

_SPREAD = 0.1  # deviation of initial gate logits
PAPER = {
    "target_density": 0.05,
    "units": "weights(biases=True)",
    "ramp": 0,
    "stepwise": True,
    "hold": 20,
    "scale_from": 25,
    "scale_rate": 0.3,
    "start_open": 0.95,
    "lr": 0.1,
    "clip_norm": None,
    "schedule": "constant",
}


class Server(NamedTuple):
    weights: Params
    gate_logits: Params
    dual: Tensor
    steps: int


class Down(NamedTuple):
    weights: Dense
    gate_logits: Dense
    rounds: Count


class Up(NamedTuple):
    weights: Change
    gate_logits: Change
    examples: Examples
    steps: Count


class Gated(NamedTuple):
    weights: Params
    gate_logits: Params


@dataclass(frozen=True, kw_only=True)
class GatedWeights:
    """What FLoPS and FLoPS-PA share: options and formulas of sections 2 to 4."""

    task: Task
    target_density: float = option(0.15, "rho: share of gated weights kept")
    ramp: int | None = option(
        None, "rounds until density has fallen from 1; none: 9/10 of all; paper: 0"
    )
    units: Units = option(
        Weights(biases=False), "what a gate opens: weights, or channels that can be cut"
    )
    gate: HardConcrete = option(HardConcrete(beta=0.66), "temperature and stretch")
    start_open: float = option(0.5, "initial gates have logit log(start_open / (1 - start_open))")
    logit_limit: float = option(10.0, "L: gate logits stay in [-L, L]")
    test_gate: Literal["median", "untempered"] = option(
        "median", "gates of the model that is deployed"
    )
    scaling: Literal["additive", "multiplicative"] = option(
        "additive", "of logits; the paper: the latter"
    )
    scale_rate: float = option(1.0, "r: by how much scaling raises the logits of kept gates")
    closing: float = option(0.0, "share of r by which it lowers the others; 1 in the paper")
    lr: float = option(1.0, "eta_w, of weights")
    clip_norm: float | None = option(1.0, "largest allowed norm of the gradient of weights")
    schedule: Schedule = option(Cosine(floor=0.02), "of both learning rates, over rounds")
    gate_lr: float = option(0.05, "eta_a, of gate logits")
    dual_lr: float = option(1.0, "eta_lambda, of the dual of density")

    def __post_init__(self) -> None:
        in_range("target_density", self.target_density, 0, 1, above=True)
        in_range("ramp", self.ramp or 0, 0)
        in_range("start_open", self.start_open, 0, 1, above=True, below=True)
        in_range("logit_limit", self.logit_limit, 0, above=True)
        in_range("scale_rate", self.scale_rate, 0)
        in_range("closing", self.closing, 0)
        in_range("lr", self.lr, 0, above=True)
        if self.clip_norm is not None:
            in_range("clip_norm", self.clip_norm, 0, above=True)
        in_range("gate_lr", self.gate_lr, 0)
        in_range("dual_lr", self.dual_lr, 0)
        budget(self.units, self.task.graph, self.target_density)
        floor = self.gate.active_prob(torch.tensor(-self.logit_limit)).item()
        if self.target_density <= floor:
            raise ConfigError(
                f"target_density={self.target_density} cannot be reached: a closed gate stays open "
                f"with probability {floor:.2g} at logit_limit={self.logit_limit}. Raise "
                "logit_limit (10 gives 0.0002) or target_density."
            )

    def init_logits(self, key: Key) -> Params:
        centre = math.log(self.start_open / (1 - self.start_open))
        return {
            name: centre + _SPREAD * keys.normal(fold(key, "gates", name), shape)
            for name, shape in self.units.shapes(self.task.graph).items()
        }

    def effective(self, weights: Params, gates: Params) -> Params:
        """Theta = w z; tensors without a gate as they are."""
        factors = self.units.spread(self.task.graph, gates)
        buffers = self.task.buffers
        return {
            n: w * factors[n] if n in factors and n not in buffers else w
            for n, w in weights.items()
        }

    def loss(self, weights: Params, gate_logits: Params, batch: Batch, key: Key) -> Tensor:
        """The mean loss under one draw of all gates."""
        gates = {n: self.gate.sample(a, fold(key, "gate", n)) for n, a in gate_logits.items()}
        return self.task.loss(self.effective(weights, gates), batch, key)

    def density(self, gate_logits: Params) -> Tensor:
        """The expected share of weights whose gate is open."""
        prob = {n: self.gate.active_prob(a) for n, a in gate_logits.items()}
        return self.units.density(self.task.graph, prob)

    def slope(self, gate_logits: Params) -> tuple[Tensor, Params]:
        """The expected density, and its gradient."""
        logits = {n: a.detach().requires_grad_() for n, a in gate_logits.items()}
        density = self.density(logits)
        grads = torch.autograd.grad(density, list(logits.values()))
        return density.detach(), dict(zip(logits, grads, strict=True))

    def clamp(self, gate_logits: Params) -> Params:
        limit = self.logit_limit
        return {n: a.clamp(-limit, limit) for n, a in gate_logits.items()}

    def test_gates(self, gate_logits: Params) -> Params:
        """Gates at test time: medians, or the convention that leaves the temperature out."""
        beta = 1 if self.test_gate == "median" else self.gate.beta
        return {n: self.gate.median(a * beta) for n, a in gate_logits.items()}

    def cut(self, weights: Params, gates: Params, chosen: Mask) -> Params:
        """The effective weights with all gates closed but the chosen ones."""
        left = self.effective(weights, masks.apply(gates, chosen))
        return masks.apply(left, self.units.cover(self.task.graph, chosen))

    def largest(self, weights: Params, gate_logits: Params, kept: int) -> Mask:
        """The gates of the `kept` largest effective weights."""
        effective = self.effective(weights, self.test_gates(gate_logits))
        return self.units.choose(self.task.graph, effective, kept)

    def density_after(self, rounds: int) -> float:
        """Rho after so many rounds of gradual pruning."""
        return gradual(self.target_density, rounds, self.ramp or 0)

    def budget(self, rounds: int) -> int:
        """M = floor(rho P) after so many rounds."""
        return budget(self.units, self.task.graph, self.density_after(rounds))

    def scale(self, gate_logits: Params, kept: Mask) -> Params:
        """Open kept gates and close the others by one step of section 4."""
        up, down = self.scale_rate, -self.closing * self.scale_rate
        step = {n: torch.where(k, up, down) for n, k in kept.items()}
        if self.scaling == "additive":
            return self.clamp({n: a + step[n] for n, a in gate_logits.items()})
        return self.clamp({n: a * (1 + step[n]) for n, a in gate_logits.items()})


@register("flops")
@dataclass(frozen=True, kw_only=True)
class Flops(GatedWeights, Method[Server, tuple[()], Down, Up]):
    """Gated weights by averaging gradients; exactly m weights are deployed."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    ramp: int | None = option(
        None, "rounds until density has fallen from 1; none: 2/3 of all; paper: 0"
    )
    start_open: float = option(0.99, "initial gates have logit log(start_open / (1 - start_open))")
    stepwise: bool = option(
        False, "a round is one step, as in the paper; else the job's local steps"
    )
    hold: int = option(1, "rounds with one cohort; the paper: n(B)")
    scale_from: int = option(1, "the cohort after which gate logits are first scaled")
    scale_rate: float = option(1.0, "r: by how much scaling raises the logits of kept gates")
    closing: float = option(1.0, "share of r by which it lowers the others; 1 in the paper")
    weighting: Literal["samples", "uniform"] = option(
        "uniform", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("hold", self.hold, 1)
        in_range("scale_from", self.scale_from, 1)

    def in_run(self, rounds: int) -> Self:
        return replace(super().in_run(rounds), ramp=ramp_in_run(self.ramp, rounds, parts=3))

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        return Server(weights, self.init_logits(key), torch.zeros(()), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def cohort(self, size: int, done: int) -> Cohort:
        return Cohort(size, draw=done // self.hold)

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.weights, server.gate_logits, server.steps)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        start = Gated(down.weights, down.gate_logits)

        def objective(at: Gated, batch: Batch, key: Key) -> Tensor:
            return self.loss(at.weights, at.gate_logits, batch, key)

        batches = data.work(key)
        if self.stepwise:
            batches = iter([data.draw(fold(key, "batch"))])
        factor = self.schedule.factor(down.rounds)
        trained = local.train(
            objective,
            start,
            batches,
            (SGD(), SGD()),
            lr=(self.lr * factor, self.gate_lr * factor),
            key=key,
            fixed=self.task.buffers,
            clip_norm=(self.clip_norm, None),
        )
        lost = [tree.subtract(a, b) for a, b in zip(start, trained.params, strict=True)]
        density = self.density(down.gate_logits).item()
        values = {"train_loss": trained.loss, "expected_density": density}
        metrics = Metrics(trained.processed, values)
        return Up(lost[0], lost[1], data.examples, trained.steps), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies = round.replies
        shares = [r.examples if self.weighting == "samples" else 1 for r in replies]
        step = tree.weighted_mean((r.weights, c) for r, c in zip(replies, shares, strict=True))
        open_ = tree.weighted_mean((r.gate_logits, c) for r, c in zip(replies, shares, strict=True))
        weights = {n: w - step[n] for n, w in server.weights.items()}
        density, slopes = self.slope(server.gate_logits)
        steps = sum(r.steps for r in replies) / len(replies)
        pull = steps * self.gate_lr * self.schedule.factor(server.steps) * server.dual
        logits = self.clamp(
            {n: a - open_[n] - pull * slopes[n] for n, a in server.gate_logits.items()}
        )
        wanted = self.density_after(server.steps + 1)
        dual = ascend(server.dual, density - wanted, steps * self.dual_lr)
        cohorts, is_over = divmod(server.steps + 1, self.hold)
        if not is_over and cohorts >= self.scale_from:
            kept = self.budget(server.steps + 1)
            logits = self.scale(logits, self.largest(weights, logits, kept))
        return Server(weights, logits, dual, server.steps + 1)

    def report(self, server: Server) -> Report:
        return Report(gates=self.test_gates(server.gate_logits))

    def model(self, server: Server, state: tuple[()]) -> Params:
        weights, logits = server.weights, server.gate_logits
        chosen = self.largest(weights, logits, self.budget(server.steps))
        return self.cut(weights, self.test_gates(logits), chosen)
