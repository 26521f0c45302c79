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
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedsieve.core.message import Mask, Params

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
        return self.reset_density > 0 and int(kept.count_nonzero()) <= limit

    def settled(self, weights: Params, thresholds: Params) -> tuple[Params, Mask]:
        """Thresholds with their masks when nothing is left to reset."""
        found, mask = dict(thresholds), {}
        for name, tau in thresholds.items():
            mask[name] = self.kept(weights[name], tau)
            if self.is_reset_after(mask[name]):
                found[name] = torch.zeros_like(tau)
                mask[name] = self.kept(weights[name], found[name])
        return found, mask

    def effective(
        self, weight: Tensor, thresholds: Tensor, kept: Tensor, fan_in: int | None = None
    ) -> Tensor:
        """The weight under a mask, differentiable in weight and thresholds.

        `fan_in` is the length of the row that magnitudes are means of, where `weight` has been cut.
        """
        slope = None if self.slope == "identity" else self._window(weight, thresholds)
        is_row = self.granularity == "filter"
        n = (fan_in or weight[0].numel()) if is_row else 0
        some = None if is_row and bool(kept.all()) else kept
        masked: Tensor = _Masked.apply(  # type: ignore[no-untyped-call]
            weight, thresholds, some, slope, n, self.through_magnitude
        )
        return masked

    def _magnitude(self, weight: Tensor) -> Tensor:
        if self.granularity == "element":
            return weight.abs()
        return weight.abs().mean(tuple(range(1, weight.dim())), keepdim=True)

    def _window(self, weight: Tensor, thresholds: Tensor) -> Tensor:
        """1 within a distance of 1 from the threshold and 0 beyond, or the other way round."""
        distance = self._magnitude(weight.detach()) - _column(thresholds.detach(), weight)
        is_near = distance.abs() <= 1
        return is_near if self.slope == "window" else ~is_near


def penalty(thresholds: Params, kind: Penalty) -> Tensor:
    """What falls as thresholds rise: the sum of exp(-tau), or of 1 / (|tau| + 0.1)."""
    tau = torch.cat(list(thresholds.values()))
    return ((-tau).exp() if kind == "exp" else 1 / (tau.abs() + 0.1)).sum()


class _Masked(torch.autograd.Function):
    """w p with the gradients at the top of this file; `row` is n for whole rows and 0 else.

    `kept` is None where the mask keeps all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        thresholds: Tensor,  # noqa: ARG004 - it is differentiated
        kept: Tensor | None,
        slope: Tensor | None,
        row: int,
        through_magnitude: bool,  # noqa: FBT001 - autograd takes no keywords
    ) -> Tensor:
        if kept is not None:
            kept = kept.to(weight.dtype)  # products with booleans are several times slower
        ctx.save_for_backward(weight, kept, slope)
        ctx.row, ctx.through_magnitude = row, through_magnitude
        return weight.view_as(weight) if kept is None else weight * kept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        weight, kept, slope = ctx.saved_tensors
        product = grad * weight
        axes = tuple(range(1, weight.dim()))
        if ctx.row:  # one slope for each row: sum first
            product = product.sum(axes, keepdim=True)
        if slope is not None:
            product = product * slope
        of_thresholds = -(product if ctx.row else product.sum(axes)).flatten()
        of_weight = None
        if ctx.needs_input_grad[0]:
            of_weight = grad if kept is None else grad * kept
            if ctx.through_magnitude:  # d|w| = sign(w)
                per_weight = product / ctx.row if ctx.row else product
                of_weight = torch.addcmul(of_weight, weight.sign(), per_weight)
        return of_weight, of_thresholds, None, None, None, None


def _column(thresholds: Tensor, weight: Tensor) -> Tensor:
    return thresholds.view(-1, *[1] * (weight.dim() - 1))
