"""What outputs are for: a loss, sums that add up over disjoint sets, and the figure of merit.

A figure of nothing (no examples, no label anywhere, no spread of values) is NaN.
"""

import math
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from fedsieve.core.errors import DataError

_ROUNDING = 1e-12  # a sum of squares that is less than that share of its parts is 0
Kind: TypeAlias = Literal["classes", "binary", "labels", "values"]


class Objective(Protocol):
    """The part of a task that sees outputs and targets alone; see `Task` for the functions."""

    sums: int

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor: ...
    def tally(self, outputs: Tensor, y: Tensor) -> Tensor: ...
    def score(self, tally: Tensor) -> float: ...
    def mean_loss(self, tally: Tensor) -> float: ...


class Classes:
    """One class of several: cross-entropy and accuracy. Tally: correct, loss, examples."""

    sums = 3

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, y)

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs.double(), y, reduction="sum")
        return _sums((outputs.argmax(-1) == y).sum(), loss, y.shape[0])

    def score(self, tally: Tensor) -> float:
        return float(tally[0] / tally[2])

    def mean_loss(self, tally: Tensor) -> float:
        return float(tally[1] / tally[2])


class Binary:
    """Yes or no by one logistic unit: binary cross-entropy and accuracy.

    Tally: correct, loss, examples.
    """

    sums = 3

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        _same_shape(outputs, y)
        return functional.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype))

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        _same_shape(outputs, y)
        loss = functional.binary_cross_entropy_with_logits(
            outputs.double(), y.double(), reduction="sum"
        )
        return _sums(((outputs > 0) == (y > 0)).sum(), loss, y.shape[0])

    def score(self, tally: Tensor) -> float:
        return float(tally[0] / tally[2])

    def mean_loss(self, tally: Tensor) -> float:
        return float(tally[1] / tally[2])


class Labels:
    """Any number of labels: binary cross-entropy, micro-F1 of labels with probability over 1/2.

    The loss of an example is summed over its labels, as its log-likelihood is: priors then weigh
    the same against it as for classes, and so do learning rates.
    Tally: true positives, labels predicted, labels present, loss, examples.
    """

    sums = 5

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        _same_shape(outputs, y)
        total = functional.binary_cross_entropy_with_logits(
            outputs, y.to(outputs.dtype), reduction="sum"
        )
        return total / y.shape[0]

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        _same_shape(outputs, y)
        logits, present = outputs.double(), y.double()
        predicted = (logits > 0).double()
        loss = functional.binary_cross_entropy_with_logits(logits, present, reduction="sum")
        return _sums((predicted * present).sum(), predicted.sum(), present.sum(), loss, y.shape[0])

    def score(self, tally: Tensor) -> float:
        return float(2 * tally[0] / (tally[1] + tally[2]))

    def mean_loss(self, tally: Tensor) -> float:
        return float(tally[3] / tally[4])


class Values:
    """One number each: squared error (without 1/2) and R2, which targets that are all equal lack.

    Tally: squared error, sum and sum of squares of the targets, examples.
    """

    sums = 4

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        _same_shape(outputs, y)
        return functional.mse_loss(outputs, y)

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        _same_shape(outputs, y)
        target = y.double()
        error = (outputs.double() - target).square().sum()
        return _sums(error, target.sum(), target.square().sum(), y.shape[0])

    def score(self, tally: Tensor) -> float:
        error, total, squares, count = tally
        spread = squares - total.square() / count
        return float(1 - error / spread) if spread > _ROUNDING * squares else math.nan

    def mean_loss(self, tally: Tensor) -> float:
        return float(tally[0] / tally[3])


OBJECTIVES: dict[Kind, Objective] = {
    "classes": Classes(),
    "binary": Binary(),
    "labels": Labels(),
    "values": Values(),
}


def _sums(*parts: Tensor | int) -> Tensor:
    return torch.stack([torch.as_tensor(part, dtype=torch.float64) for part in parts])


def _same_shape(outputs: Tensor, y: Tensor) -> None:
    if outputs.shape != y.shape:
        raise DataError(
            f"the model gives outputs of shape {tuple(outputs.shape)}, but the targets have shape "
            f"{tuple(y.shape)}. Build the model with as many outputs as there are targets."
        )
