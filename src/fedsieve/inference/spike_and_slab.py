"""The spike-and-slab prior: gates that are open with probability theta, one for each group.

A weight is N(w, 1/precision) where its group's gate is open and 0 where it is closed. Symbols and
formulas are those of specification fedsparse, sections 2 and 3: w weights, v raw thresholds,
theta the probability of an open gate on the server and pi on a client, z gates drawn, T the
temperature. Everything stays in logit space.

    logit theta_g = (|w_g| - softplus(v_g)) / T          thresholds
    logit theta_g = -v_g / T                             free: theta is a parameter of its own

Tensors of groups have the shape of their weights with length 1 along the axes a group fills, so
that products spread by themselves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedsieve.core import keys, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Mask, Params
from fedsieve.sparsity import masks
from fedsieve.sparsity.hard_concrete import HardConcrete

CLOSED = 1000.0  # minus the logit of a gate that is closed for good: sigmoid is exactly 0
LEAST_SHARE = 1e-6  # of open gates, as the closed form takes it: the logit of 0 is infinite


class Gated(NamedTuple):
    """Weights, and v of the groups of those that have gates."""

    weights: Params
    raw_thresholds: Params


class Drawn(NamedTuple):
    """Weights of a local model, 0 where its gates are closed."""

    weights: Params
    gates: Mask


class Slab(NamedTuple):
    """The server's parameters as the client's penalty needs them: w, and logit theta."""

    weights: Params
    logits: Params


@dataclass(frozen=True)
class SpikeAndSlab:
    """p(phi | w, theta) with gates over the groups that `axes` gives for each gated tensor."""

    axes: Mapping[str, tuple[int, ...]]  # along which a tensor's group reaches; () single weights
    gate_cost: float  # lambda_0, of one open weight
    cross_entropy: float  # weight of -log Bern(pi; theta)
    precision: float = 0.0  # lambda: of open weights around the server's
    temperature: float = 1e-3  # T
    is_free: bool = False
    is_shifted: bool = False  # P(z > 0) of a hard-concrete gate is pi, not a little more
    concrete: HardConcrete = field(default_factory=HardConcrete)

    def logits(self, local: Gated) -> Params:
        """Logit of an open gate for each group; only v receives a gradient."""
        if self.is_free:
            return {n: -v / self.temperature for n, v in local.raw_thresholds.items()}
        norms = self.norms(local.weights)
        return {
            n: (norms[n] - softplus(v)) / self.temperature for n, v in local.raw_thresholds.items()
        }

    def norms(self, weights: Params) -> Params:
        """|w_g| of each group."""
        return {n: _norm(weights[n].detach(), axes) for n, axes in self.axes.items()}

    def open(self, weights: Params, probability: float, smallest: float) -> Gated:
        """Weights with v such that theta = probability; thresholds below `smallest` are raised."""
        logit = self.temperature * math.log(probability / (1 - probability))
        raw = {
            n: torch.full_like(norm, -logit)
            if self.is_free
            else inverse_softplus((norm - logit).clamp(min=smallest))
            for n, norm in self.norms(weights).items()
        }
        return Gated(weights, raw)

    def close(self, local: Gated, alive: Mask) -> Gated:
        """`local` with the gates outside `alive` closed for good."""
        closed = CLOSED * self.temperature
        raw = {n: v.where(alive[n], closed) for n, v in local.raw_thresholds.items()}
        return Gated(local.weights, raw)

    def effective(self, local: Gated, key: Key) -> Params:
        """The weights times one hard-concrete draw for each group."""
        gates = {
            n: self.concrete.sample(self._location(logits), fold(key, "gates", n))
            for n, logits in self.logits(local).items()
        }
        return {n: w * gates[n] if n in gates else w for n, w in local.weights.items()}

    def penalty(self, local: Gated, centre: Slab) -> Tensor:
        """Cost of open gates, cross-entropy to theta and the tie of open weights (section 3 d)."""
        total = torch.zeros(())
        for name, logits in self.logits(local).items():
            weight, theta = local.weights[name], centre.logits[name]
            active = self.concrete.active_prob(self._location(logits))
            size = weight.numel() // logits.numel()
            cost = self.gate_cost * size - self.cross_entropy * theta  # log(1 - theta) is constant
            total = total + (active * cost).sum()
            if self.precision:
                drift = (weight - centre.weights[name]).square()
                total = total + self.precision / 2 * (active * drift).sum()
        bare = {n: w for n, w in centre.weights.items() if n not in self.axes}
        if self.precision and bare:
            total = total + self.precision / 2 * tree.sq_dist(bare, local.weights)
        return total

    def draw(self, local: Gated, key: Key) -> Drawn:
        """A sample at temperature zero: gates of Bern(pi), and the weights behind open ones."""
        gates = {
            n: keys.uniform(fold(key, "draw", n), logits.shape) < torch.sigmoid(logits)
            for n, logits in self.logits(local).items()
        }
        return Drawn(masks.apply(local.weights, gates), gates)

    def pseudo_gradient(
        self, centre: Gated, drawn: Sequence[Drawn], shares: Sequence[float]
    ) -> Gated:
        """Unbiased gradients of -mean log p: z (w - w_s), and (z - theta) sigmoid(v) / T."""
        pairs = list(zip(drawn, shares, strict=True))
        weights = tree.weighted_mean((_pull(centre.weights, one), share) for one, share in pairs)
        opened, v = _opened(pairs), centre.raw_thresholds
        raw = {
            n: (opened[n] - torch.sigmoid(logits)) * torch.sigmoid(v[n]) / self.temperature
            for n, logits in self.logits(centre).items()
        }
        return Gated(weights, raw)

    def m_step(
        self, centre: Gated, drawn: Sequence[Drawn], shares: Sequence[float], most: float
    ) -> Gated:
        """Closed form for free theta: means over open gates, theta = mean z, at most `most`.

        Weights that no client kept stay as they are (section 1).
        """
        pairs = list(zip(drawn, shares, strict=True))
        opened = _opened(pairs)
        means = tree.weighted_mean((d.weights, s) for d, s in pairs)
        weights = {
            n: torch.where(opened[n] > 0, mean / opened[n], centre.weights[n])
            if n in opened
            else mean
            for n, mean in means.items()
        }
        raw = {
            n: -self.temperature * torch.logit(share.clamp(LEAST_SHARE, most))
            for n, share in opened.items()
        }
        return Gated(weights, raw)

    def _location(self, logits: Tensor) -> Tensor:
        """Of hard-concrete gates: the logits of pi, or where P(z > 0) = pi (section 9, point 6)."""
        return logits - self.concrete.shift if self.is_shifted else logits


def inverse_softplus(value: Tensor) -> Tensor:
    """The v with softplus(v) = value > 0."""
    return value + torch.log(-torch.expm1(-value))


def _norm(weight: Tensor, axes: tuple[int, ...]) -> Tensor:
    return torch.linalg.vector_norm(weight, dim=axes, keepdim=True) if axes else weight.abs()


def _opened(pairs: list[tuple[Drawn, float]]) -> Params:
    """Mean z."""
    return tree.weighted_mean(({n: z.float() for n, z in d.gates.items()}, s) for d, s in pairs)


def _pull(centre: Params, one: Drawn) -> Params:
    """`z (w - w_s)`; z is 1 where there are no gates."""
    return masks.apply({n: w - one.weights[n] for n, w in centre.items()}, one.gates)
