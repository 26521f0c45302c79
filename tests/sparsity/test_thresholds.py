"""Masks from thresholds, and gradients by closed forms (specification spafl, section 3)."""

import numpy as np
import pytest
import torch

from fedsieve.core.keys import fold, normal, uniform
from fedsieve.sparsity.thresholds import Thresholding, penalty

KEY = fold(0, "thresholds")
SHAPES = ((4, 6), (3, 2, 3, 3))


def _case(shape):
    """Small and large rows, thresholds amid their magnitudes, a gradient of w p; doubles."""
    scale = torch.linspace(0.3, 4, shape[0]).view(-1, *[1] * (len(shape) - 1))
    weight = (scale * normal(fold(KEY, "w"), shape)).double()
    thresholds = 0.5 + uniform(fold(KEY, "tau"), shape[:1]).double()
    return weight, thresholds, normal(fold(KEY, "g"), shape).double()


def _closed_form(weight, thresholds, grad, rule):
    """(kept, slope, dw, dtau) of section 3 over rows of n weights, in numpy."""
    w, g = (t.flatten(1).numpy() for t in (weight, grad))
    n = w.shape[1]
    size = np.abs(w) if rule.granularity == "element" else np.abs(w).mean(1, keepdims=True)
    x = size - thresholds.numpy()[:, None]
    p = (x > 0).astype(float)
    near = (np.abs(x) <= 1).astype(float)
    slope = {"identity": np.ones_like(x), "window": near, "inverted": 1 - near}[rule.slope]
    dtau = -(slope * g * w).sum(1)
    through = (
        slope * g * np.abs(w)
        if rule.granularity == "element"
        else slope * np.sign(w) / n * (g * w).sum(1, keepdims=True)
    )
    return p, slope, g * p + through * rule.through_magnitude, dtau


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("slope", ["identity", "window", "inverted"])
@pytest.mark.parametrize("granularity", ["element", "filter"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_the_closed_forms(shape, granularity, slope, through):
    rule = Thresholding(granularity, slope, through)
    weight, thresholds, grad = _case(shape)
    p, slopes, dw, dtau = _closed_form(weight, thresholds, grad, rule)
    assert 0 < p.mean() < 1
    assert slope == "identity" or 0 < slopes.mean() < 1  # some rows are near, some far
    ours = [t.clone().requires_grad_() for t in (weight, thresholds)]
    effective = ours[0] * rule.step(*ours, rule.kept(*ours))
    effective.backward(grad)
    np.testing.assert_array_equal(effective.detach().flatten(1), weight.flatten(1).numpy() * p)
    np.testing.assert_allclose(ours[0].grad.flatten(1), dw, rtol=0, atol=1e-13)
    np.testing.assert_allclose(ours[1].grad, dtau, rtol=0, atol=1e-13)


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


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [
        ("exp", lambda t: np.exp(-t), lambda t: -np.exp(-t)),
        (
            "inverse",
            lambda t: 1 / (np.maximum(t, 0) + 0.1),
            lambda t: np.where(t < 0, 0, -1 / (t + 0.1) ** 2),
        ),
    ],
)
def test_penalties_fall_as_thresholds_rise_from_negative_to_positive(kind, value, slope):
    """At 0, where thresholds start, both pull; `inverse` pushes negative ones nowhere."""
    grid = np.array([-2.0, -0.4, -1e-3, 0.0, 1e-3, 0.3, 1.0])
    tau = torch.tensor(grid, requires_grad=True)
    total = penalty({"a": tau[:3], "b": tau[3:]}, kind)
    total.backward()
    assert total.item() == pytest.approx(value(grid).sum(), rel=1e-12)
    np.testing.assert_allclose(tau.grad, slope(grid), rtol=1e-12)
    each = [penalty({"a": torch.tensor([t])}, kind).item() for t in grid]
    assert each == sorted(each, reverse=True)
    assert slope(np.zeros(1)) < 0
