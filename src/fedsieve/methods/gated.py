"""What FLoPS and FLoPS-PA share: gated weights under a constraint on their density.

Paper    "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025
         (specification flops, sections 1 to 4).
Symbols  w, theta-tilde -> weights   a, phi -> gate_logits   z -> gates   theta = w z -> effective
         rho -> target_density   lambda -> dual     L -> logit_limit   r -> scale_rate
Differs  normalisation has no gate. P and densities count weights that may be masked and their
         biases; with gates of channels the weights alone.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsieve.core import keys
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Mask, Params
from fedsieve.core.method import Batch, Task
from fedsieve.core.options import in_range
from fedsieve.optim.schedules import Cosine, Schedule, gradual
from fedsieve.sparsity import masks
from fedsieve.sparsity.hard_concrete import HardConcrete
from fedsieve.sparsity.units import Units, Weights, budget

_SPREAD = 0.1  # deviation of initial gate logits


@dataclass(frozen=True, kw_only=True)
class GatedWeights:
    """Hyper-parameters and formulas of sections 2 to 4."""

    task: Task
    target_density: float = 0.15  # rho: share of gated weights kept
    ramp: int | None = None  # rounds until density has fallen from 1; none: 9/10 of all; paper: 0
    units: Units = Weights(biases=False)  # what a gate opens: weights, or channels that can be cut
    gate: HardConcrete = HardConcrete(beta=0.66)  # temperature and stretch
    start_open: float = 0.5  # initial gates have logit log(start_open / (1 - start_open))
    logit_limit: float = 10.0  # L: gate logits stay in [-L, L]
    test_gate: Literal["median", "untempered"] = "median"  # gates of the model that is deployed
    scaling: Literal["additive", "multiplicative"] = "additive"  # of logits; the paper: the latter
    scale_rate: float = 1.0  # r: by how much scaling raises the logits of kept gates
    closing: float = 0.0  # share of r by which it lowers the others; 1 in the paper
    lr: float = 1.0  # eta_w, of weights
    clip_norm: float | None = 1.0  # largest allowed norm of the gradient of weights
    schedule: Schedule = Cosine(floor=0.02)  # of both learning rates, over rounds
    gate_lr: float = 0.05  # eta_a, of gate logits
    dual_lr: float = 1.0  # eta_lambda, of the dual of density

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
        own = {n: a.detach().requires_grad_() for n, a in gate_logits.items()}
        density = self.density(own)
        grads = torch.autograd.grad(density, list(own.values()))
        return density.detach(), dict(zip(own, grads, strict=True))

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
