"""Priors p(phi | W) of local models around the server's: a client penalty and a server M-step.

Federated averaging is hard EM (specification fedsparse, section 1): the client's E-step minimises
its loss plus `penalty` = -log p(phi | W), the server's M-step maximises mean_s log p(phi_s | W),
in closed form (`m_step`) or by one optimiser step on `pseudo_gradient`.

Scale: coefficients are per *mean* mini-batch loss, as in FedProx and FedSparse practice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.message import Params
from fedsieve.core.options import in_range


class Prior(Protocol):
    """What the shared client loop and round ask of a prior."""

    def penalty(self, local: Params, centre: Params) -> Tensor | None:
        """-log p(local | centre) without constants, differentiable in local; None when it is 0."""

    def m_step(self, locals_: Sequence[Params], shares: Sequence[float]) -> Params:
        """argmax_W sum_s share_s log p(phi_s | W)."""

    def pseudo_gradient(
        self, centre: Params, locals_: Sequence[Params], shares: Sequence[float]
    ) -> Params:
        """Direction to descend in W; shares add up to 1."""


@dataclass(frozen=True)
class Gaussian:
    """N(W, 1/precision): penalty precision/2 |phi - W|^2, M-step the weighted mean.

    With precision 0 (FedAvg) only the truncated local optimiser ties phi to W. The pseudo-gradient
    is mean(W - phi) for every precision: its factor belongs to the server's learning rate.
    """

    precision: float = 0.0

    def __post_init__(self) -> None:
        in_range("precision", self.precision, 0)

    def penalty(self, local: Params, centre: Params) -> Tensor | None:
        return self.precision / 2 * tree.sq_dist(local, centre) if self.precision else None

    def m_step(self, locals_: Sequence[Params], shares: Sequence[float]) -> Params:
        return tree.weighted_mean(zip(locals_, shares, strict=True))

    def pseudo_gradient(
        self, centre: Params, locals_: Sequence[Params], shares: Sequence[float]
    ) -> Params:
        return tree.subtract(centre, self.m_step(locals_, shares))


@dataclass(frozen=True)
class Laplace:
    """Laplace(W, b) with 1/b = tie: penalty tie * |phi - W|_1, M-step the weighted median."""

    tie: float = 0.0

    def __post_init__(self) -> None:
        in_range("tie", self.tie, 0)

    def penalty(self, local: Params, centre: Params) -> Tensor | None:
        return self.tie * tree.l1_dist(local, centre) if self.tie else None

    def m_step(self, locals_: Sequence[Params], shares: Sequence[float]) -> Params:
        weights = torch.tensor(shares, dtype=torch.float64)
        return {
            name: weighted_median(torch.stack([local[name] for local in locals_]), weights)
            for name in locals_[0]
        }

    def pseudo_gradient(
        self, centre: Params, locals_: Sequence[Params], shares: Sequence[float]
    ) -> Params:
        signs = [{n: torch.sign(c - local[n]) for n, c in centre.items()} for local in locals_]
        return tree.weighted_mean(zip(signs, shares, strict=True))


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Minimiser m of sum_s weight_s |value_s - m| along dimension 0.

    Where a whole interval is optimal its middle is taken, as numpy's median does.
    """
    ordered, order = values.sort(dim=0, stable=True)
    passed = weights[order].cumsum(dim=0)
    half = weights.sum() / 2
    # Equal weights can miss the half by rounding; one part in 1e9 is far above that error.
    lower = (passed < half * (1 - 1e-9)).sum(dim=0, keepdim=True)
    upper = (passed <= half * (1 + 1e-9)).sum(dim=0, keepdim=True).clamp(max=len(values) - 1)
    middle = (ordered.gather(0, lower) + ordered.gather(0, upper)) / 2
    return middle.squeeze(0)
