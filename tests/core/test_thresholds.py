"""Masks from thresholds, and their gradients against autograd of the surrogate written out."""

import pytest
import torch

from fedsieve.core.keys import fold, normal, uniform
from fedsieve.core.thresholds import Thresholding, penalty

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
    effective = ours[0] * rule.step(*ours, kept)
    effective.backward(grad)
    theirs = [t.clone().requires_grad_() for t in (weight, thresholds)]
    expected = _surrogate(*theirs, rule)
    expected.backward(grad)
    assert 0 < int(kept.count_nonzero()) < kept.numel()
    assert torch.equal(effective, expected)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-14)


def test_only_what_is_larger_than_its_threshold_is_kept():
    weight = torch.tensor([[0.5, -0.5, 0.25], [1.0, -3.0, 0.0]])
    thresholds = torch.tensor([0.25, 1.0])
    element = Thresholding("element").kept(weight, thresholds)
    assert element.tolist() == [[True, True, False], [False, True, False]]
    row = Thresholding("filter").kept(weight, torch.tensor([0.5, 1.0]))  # means 5/12 and 4/3
    assert row.tolist() == [[False], [True]]


def test_rows_of_equal_magnitudes_have_the_same_mask_either_way():
    weight = torch.tensor([[0.5, -0.5], [2.0, 2.0], [-1.0, 1.0]])
    thresholds = torch.tensor([0.5, 1.0, 1.5])
    element = Thresholding("element").kept(weight, thresholds)
    row = Thresholding("filter").kept(weight, thresholds).expand_as(element)
    assert torch.equal(element, row)


def test_a_layer_at_or_below_the_limit_is_settled_open():
    weights = {"a": torch.ones(100, 1), "b": torch.ones(100, 1)}
    thresholds = {"a": torch.full((100,), 2.0), "b": torch.full((100,), 2.0)}
    thresholds["a"][0] = 0.0  # 1 of 100 rows kept
    thresholds["b"][:2] = 0.0
    found, mask = Thresholding("filter", reset_density=0.01).settled(weights, thresholds)
    assert not found["a"].any()
    assert mask["a"].all()
    assert torch.equal(found["b"], thresholds["b"])
    assert int(mask["b"].count_nonzero()) == 2
    assert thresholds["a"][1] == 2  # the input is as it was


def test_penalties_fall_as_thresholds_rise():
    tau = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([-0.4])}
    torch.testing.assert_close(
        penalty(tau, "exp"), torch.tensor([0.0, -1.0, 0.4]).exp().sum(), rtol=1e-6, atol=0
    )
    inverse = torch.tensor(1 / 0.1 + 1 / 1.1 + 1 / 0.5)
    torch.testing.assert_close(penalty(tau, "inverse"), inverse, rtol=1e-6, atol=0)


@pytest.mark.parametrize("granularity", ["element", "filter"])
def test_gradients_are_the_same_where_everything_is_kept(granularity):
    rule = Thresholding(granularity)
    weight, _, grad = _case((4, 6))
    ours = [weight.clone().requires_grad_(), torch.zeros(4).double().requires_grad_()]
    (ours[0] * rule.step(*ours, rule.kept(*ours))).backward(grad)
    theirs = [weight.clone().requires_grad_(), torch.zeros(4).double().requires_grad_()]
    _surrogate(*theirs, rule).backward(grad)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-14)
