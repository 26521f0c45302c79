"""Trainable thresholds: row i of a weight keeps what is larger than its threshold.

    element   p_ij = 1[|w_ij| > tau_i]              filter   p_i = 1[mean_j |w_ij| > tau_i]

A row is a neuron, a filter or a gate of an LSTM. The step function has derivative 0 almost
everywhere, so its gradient is replaced by that of a straight line (specification spafl, section 3).
With G the gradient of the effective weight w p, n the row's length, and slope 1 or a window on
x = magnitude - tau:

    tau_i:            - sum_j slope G_ij w_ij
    w_ij, element:      G_ij p_ij + slope G_ij |w_ij|
    w_ij, filter:       G_ij p_i  + slope sign(w_ij) / n  sum_j' G_ij' w_ij'

The second term of a weight's gradient is `through_magnitude`; without it pruned weights rest.
A layer whose mask keeps next to nothing is reset: its thresholds become 0 before the next mask.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedsieve.core.message import Mask, Params, count_nonzero

Granularity: TypeAlias = Literal["element", "filter"]
Penalty: TypeAlias = Literal["exp", "inverse"]
Slope: TypeAlias = Literal["identity", "window", "inverted"]


@dataclass(frozen=True)
class Thresholding:
    """What is compared with a threshold, and how its step function is differentiated."""

    granularity: Granularity
    slope: Slope = "identity"
    through_magnitude: bool = True
    reset_density: float = 0.0  # layers at or below it are reset; 0 never

    def kept(self, weight: Tensor, thresholds: Tensor) -> Tensor:
        """The mask of a weight, with an axis of length 1 where a whole row has one value."""
        return self._magnitude(weight.detach()) > _column(thresholds.detach(), weight)

    def is_reset_after(self, kept: Tensor) -> bool:
        """Whether a layer that had this mask is reset."""
        limit = self.reset_density * kept.numel()
        return self.reset_density > 0 and count_nonzero(kept) <= limit

    def settled(self, weights: Params, thresholds: Params) -> tuple[Params, Mask]:
        """Thresholds with their masks when nothing is left to reset."""
        left, mask = dict(thresholds), {}
        for name, tau in thresholds.items():
            mask[name] = self.kept(weights[name], tau)
            if self.is_reset_after(mask[name]):
                left[name] = torch.zeros_like(tau)
                mask[name] = self.kept(weights[name], left[name])
        return left, mask

    def step(self, weight: Tensor, thresholds: Tensor, kept: Tensor) -> Tensor:
        """The mask as numbers p, with the straight line's gradient; w p is the effective weight."""
        magnitude = self._magnitude(weight if self.through_magnitude else weight.detach())
        line = magnitude - _column(thresholds, weight)
        if self.slope != "identity":
            line = line * ((line.detach().abs() <= 1) == (self.slope == "window"))
        return kept + (line - line.detach())

    def _magnitude(self, weight: Tensor) -> Tensor:
        if self.granularity == "element":
            return weight.abs()
        return weight.abs().mean(tuple(range(1, weight.dim())), keepdim=True)


def penalty(thresholds: Params, kind: Penalty) -> Tensor:
    """What falls as thresholds rise: the sum of exp(-tau), or of 1 / (|tau| + 0.1).

    The paper's |tau| is read as max(tau, 0): the two agree where thresholds prune, but |tau| has no
    gradient at 0, where all thresholds start, and would drive negative ones further down. The clamp
    has slope 1 at 0 and leaves negative ones to the loss.
    """
    tau = torch.cat(list(thresholds.values()))
    return ((-tau).exp() if kind == "exp" else 1 / (tau.clamp(min=0) + 0.1)).sum()


def _column(thresholds: Tensor, weight: Tensor) -> Tensor:
    return thresholds.view(-1, *[1] * (weight.dim() - 1))
