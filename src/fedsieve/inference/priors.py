"""Priors p(phi | W) of local models around the server's: a client penalty and a server M-step.

Federated averaging is hard EM (specification fedsparse, section 1): the client's E-step minimises
its loss plus `penalty` = -log p(phi | W), the server's M-step maximises mean_s log p(phi_s | W),
in closed form (`m_step`) or, for the Gaussian, by one optimiser step on `pseudo_gradient`. The
prior with gates has a file of its own, `spike_and_slab`.

Scale: coefficients are per *mean* mini-batch loss, as in FedProx and FedSparse practice; that of
the mixture is per summed loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key
from fedsieve.core.message import Params
from fedsieve.core.options import in_range

Local_contra = TypeVar("Local_contra", contravariant=True)
Centre_contra = TypeVar("Centre_contra", contravariant=True)


class Prior(Protocol[Local_contra, Centre_contra]):
    """What the shared client loop asks of a prior: `local` is phi, `centre` stands for W."""

    def effective(self, local: Local_contra, key: Key) -> Params:
        """The weights used in the forward pass; gates are drawn here."""

    def penalty(self, local: Local_contra, centre: Centre_contra) -> Tensor | None:
        """-log p(local | centre) without constants, differentiable in local; None when it is 0."""


class PointPrior(Prior[Params, Params], Protocol):
    """A prior of plain weights around one centre, with its M-step; shares add up to 1."""

    def m_step(self, locals_: Sequence[Params], shares: Sequence[float]) -> Params:
        """argmax_W sum_s share_s log p(phi_s | W)."""


class Plain:
    """Local parameters are the weights."""

    def effective(self, local: Params, key: Key) -> Params:
        return local


@dataclass(frozen=True)
class Gaussian(Plain):
    """N(W, 1/precision): penalty precision/2 |phi - W|^2, M-step the weighted mean.

    With precision 0 (FedAvg) only the truncated local optimiser ties phi to W. The pseudo-gradient
    is mean(W - phi) for every precision: its factor belongs to the server's learning rate.
    """

    precision: float = 0.0

    def __post_init__(self) -> None:
        in_range("precision", self.precision, 0)

    def penalty(self, local: Params, centre: Params) -> Tensor | None:
        return self.precision / 2 * tree.sq_dist(centre, local) if self.precision else None

    def m_step(self, locals_: Sequence[Params], shares: Sequence[float]) -> Params:
        return tree.weighted_mean(zip(locals_, shares, strict=True))

    def pseudo_gradient(
        self, centre: Params, locals_: Sequence[Params], shares: Sequence[float]
    ) -> Params:
        # Differences first: where no client moved it is exactly 0, which Adam does not magnify.
        moved = (tree.subtract(centre, local) for local in locals_)
        return tree.weighted_mean(zip(moved, shares, strict=True))


@dataclass(frozen=True)
class Laplace(Plain):
    """Laplace(W, b) with 1/b = tie: penalty tie * |phi - W|_1, M-step the weighted median."""

    tie: float = 0.0

    def __post_init__(self) -> None:
        in_range("tie", self.tie, 0)

    def penalty(self, local: Params, centre: Params) -> Tensor | None:
        return self.tie * tree.l1_dist(centre, local) if self.tie else None

    def m_step(self, locals_: Sequence[Params], shares: Sequence[float]) -> Params:
        weights = torch.tensor(shares, dtype=torch.float64)
        return {
            name: weighted_median(torch.stack([local[name] for local in locals_]), weights)
            for name in locals_[0]
        }


class Components(NamedTuple):
    """Centres of a mixture and their log shares, as a client with so many examples sees them."""

    centres: list[Params]
    log_shares: Tensor
    examples: int = 1


@dataclass(frozen=True)
class Mixture(Plain):
    """sum_k pi_k N(W_k, 1/precision): penalty -log p / examples, M-step by responsibilities."""

    precision: float = 1.0

    def __post_init__(self) -> None:
        in_range("precision", self.precision, 0, above=True)

    def penalty(self, local: Params, centre: Components) -> Tensor:
        return -torch.logsumexp(self.log_joint(local, centre), 0) / centre.examples

    def responsibility(
        self, locals_: Sequence[Params], centre: Components, shares: Sequence[float]
    ) -> Tensor:
        """(clients, components): r_sk times the client's weight, which is 1 on average."""
        joint = torch.stack([self.log_joint(local, centre) for local in locals_])
        return len(locals_) * torch.tensor(shares)[:, None] * joint.softmax(dim=1)

    def log_joint(self, local: Params, centre: Components) -> Tensor:
        """`log pi_k + log N(phi; W_k, 1/precision)` without the constant."""
        distances = torch.stack([tree.sq_dist(one, local) for one in centre.centres])
        return centre.log_shares - self.precision / 2 * distances


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
