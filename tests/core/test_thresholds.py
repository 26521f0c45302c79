"""Masks from thresholds, and their gradients against autograd of the surrogate written out."""

import pytest
import torch

from fedsieve.core.keys import fold, normal, uniform
from fedsieve.core.thresholds import Thresholding

KEY = fold(0, "thresholds")
SHAPES = ((4, 6), (3, 2, 3, 3))


def _case(shape):
    """Weight, thresholds amid its magnitudes, and a gradient of the effective weight; doubles."""
    weight = normal(fold(KEY, "w"), shape).double()
    thresholds = 0.5 + uniform(fold(KEY, "tau"), shape[:1]).double()
    return weight, thresholds, normal(fold(KEY, "g"), shape).double()


def _slope(slope, x):
    window = (x.abs() <= 1).double()
    return {"identity": torch.ones_like(x), "window": window, "inverted": 1 - window}[slope]


def _surrogate(weight, thresholds, rule):
    """The effective weight whose step function has the surrogate's derivative in autograd."""
    column = thresholds.view(-1, *[1] * (weight.dim() - 1))
    size = weight.abs()
    if rule.granularity == "filter":
        size = size.mean(tuple(range(1, weight.dim())), keepdim=True)
    if not rule.through_magnitude:
        size = size.detach()
    x = size - column
    line = _slope(rule.slope, x.detach()) * x
    step = (x > 0).double().detach() + line - line.detach()
    return weight * step


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("slope", ["identity", "window", "inverted"])
@pytest.mark.parametrize("granularity", ["element", "filter"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_surrogate(shape, granularity, slope, through):
    rule = Thresholding(granularity, slope, through)
    weight, thresholds, grad = _case(shape)
    weight = 1.5 * weight  # some are farther than 1 from their threshold, some nearer
    ours = [t.clone().requires_grad_() for t in (weight, thresholds)]
    kept = rule.kept(*ours)
    effective = rule.effective(*ours, kept)
    effective.backward(grad)
    theirs = [t.clone().requires_grad_() for t in (weight, thresholds)]
    expected = _surrogate(*theirs, rule)
    expected.backward(grad)
    assert 0 < int(kept.count_nonzero()) < kept.numel()
    assert torch.equal(effective, expected)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-14)
