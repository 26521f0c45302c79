"""Priors: penalties against autograd of their formulas, M-steps against numpy and brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold, normal
from fedsieve.inference.priors import Components, Gaussian, Laplace, Mixture, weighted_median
from fedsieve.optim.optimisers import SGD, init_moments, update

SHAPES = {"w": (3, 2), "b": ()}
grid = st.integers(-4, 4).map(float)


def _model(*path):
    return {name: normal(fold(1, *path, name), shape) for name, shape in SHAPES.items()}


def _models(count):
    return [_model("client", i) for i in range(count)]


def _shares(count):
    return [1 / count] * count


def _numpy(models, name):
    return np.stack([model[name].numpy() for model in models])


@pytest.mark.parametrize("count", range(1, 12))
def test_with_equal_shares_the_laplace_m_step_is_numpy_s_median(count):
    models = _models(count)
    found = Laplace().m_step(models, _shares(count))
    for name, shape in SHAPES.items():
        np.testing.assert_allclose(found[name], np.median(_numpy(models, name), axis=0), rtol=1e-6)
        assert found[name].shape == shape


@pytest.mark.parametrize("count", [3, 6, 7, 10, 49, 98])
def test_the_median_of_equal_shares_survives_their_rounding(count):
    # 1/count summed in floating point misses one half by a little, on either side.
    values = torch.arange(float(count))
    for weights in (torch.full((count,), 1 / count), torch.full((count,), 600.0)):
        assert weighted_median(values.flip(0), weights.double()).item() == (count - 1) / 2


@given(st.lists(st.tuples(grid, st.integers(0, 5)), min_size=1, max_size=8))
def test_no_point_is_nearer_than_the_weighted_median(pairs):
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    if not weights.any():
        weights[:] = 1
    median = weighted_median(torch.tensor(values), torch.tensor(weights)).item()

    def cost(m):
        return (weights * np.abs(values - m)).sum()

    # The cost is convex and piecewise linear, so its smallest value is met at some data point.
    assert cost(median) == pytest.approx(min(cost(v) for v in values))
    optimal = [v for v in values if cost(v) == pytest.approx(min(map(cost, values)))]
    assert median == pytest.approx((min(optimal) + max(optimal)) / 2)


@given(st.lists(st.tuples(grid, st.integers(1, 4)), min_size=1, max_size=6))
def test_a_whole_weight_counts_like_so_many_copies(pairs):
    values, weights = (list(column) for column in zip(*pairs, strict=True))
    found = weighted_median(torch.tensor(values), torch.tensor(weights).double()).item()
    assert found == np.median(np.repeat(values, weights))


def test_medians_are_taken_coordinate_by_coordinate():
    values = torch.tensor([[1.0, 9.0], [2.0, 8.0], [3.0, 1.0]])
    found = weighted_median(values, torch.tensor([1.0, 1.0, 5.0]))
    assert found.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("precision", [0.0, 0.3])
def test_the_gaussian_m_step_is_the_weighted_mean(precision):
    models, shares = _models(4), [0.1, 0.2, 0.3, 0.4]
    found = Gaussian(precision).m_step(models, shares)
    for name in SHAPES:
        expected = np.average(_numpy(models, name), axis=0, weights=shares)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", [0.0, 0.3])
def test_the_gaussian_pseudo_gradient_fed_to_sgd_of_rate_one_is_the_mean(precision):
    centre, models, shares = _model("server"), _models(3), [0.5, 0.3, 0.2]
    prior = Gaussian(precision)
    gradient = prior.pseudo_gradient(centre, models, shares)
    moved, _ = update(SGD(), centre, gradient, init_moments(SGD(), centre), lr=1.0)
    for name, expected in prior.m_step(models, shares).items():
        torch.testing.assert_close(moved[name], expected, rtol=1e-5, atol=1e-6)


def _gradients(value, params):
    return dict(zip(params, torch.autograd.grad(value, list(params.values())), strict=True))


def test_penalties_are_their_formulas_and_so_are_their_gradients():
    local = {name: value.requires_grad_() for name, value in _model("client").items()}
    centre = _model("server")
    flat = torch.cat([(local[n] - centre[n]).reshape(-1) for n in SHAPES])
    for penalty, formula in (
        (Gaussian(0.7).penalty(local, centre), 0.7 / 2 * flat.dot(flat)),
        (Laplace(0.4).penalty(local, centre), 0.4 * flat.norm(1)),
    ):
        torch.testing.assert_close(penalty, formula)
        found, expected = _gradients(penalty, local), _gradients(formula, local)
        for name in SHAPES:
            torch.testing.assert_close(found[name], expected[name])


def test_the_penalty_of_a_mixture_is_minus_the_log_of_its_sum_for_each_example():
    """Its gradient is lam (phi - W_k) / n, mixed by the responsibilities r_k."""
    lam, examples, shares = 0.3, 5, np.array([0.2, 0.8])
    local = {n: v.requires_grad_() for n, v in _model("client").items()}
    centres = [_model("centre", k) for k in range(2)]
    found = Mixture(lam).penalty(local, Components(centres, torch.tensor(shares).log(), examples))

    def flat(model):
        return np.concatenate([model[n].detach().double().numpy().ravel() for n in SHAPES])

    away = np.stack([flat(local) - flat(centre) for centre in centres])
    density = shares * np.exp(-lam / 2 * (away**2).sum(1))
    assert 0.1 < density[0] / density.sum() < 0.9  # both centres count
    assert found.item() == pytest.approx(-np.log(density.sum()) / examples, rel=1e-5)
    expected = lam / examples * (density / density.sum()) @ away
    np.testing.assert_allclose(flat(_gradients(found, local)), expected, rtol=1e-4, atol=1e-6)


def test_a_penalty_pulls_nowhere_from_the_centre_itself():
    centre = _model("server")
    local = {name: value.clone().requires_grad_() for name, value in centre.items()}
    for prior in (Gaussian(2.0), Laplace(2.0)):
        pull = _gradients(prior.penalty(local, centre), local)
        assert all(not value.any() for value in pull.values())


def test_a_prior_without_strength_has_no_penalty():
    assert Gaussian().penalty(_model(1), _model(2)) is None
    assert Laplace().penalty(_model(1), _model(2)) is None


def test_the_pseudo_gradient_is_that_of_minus_the_mean_log_prior():
    centre = {name: value.requires_grad_() for name, value in _model("server").items()}
    models, shares = _models(3), [0.5, 0.3, 0.2]
    loss = -sum(
        share * sum(-(model[n] - centre[n]).square().sum() / 2 for n in SHAPES)
        for model, share in zip(models, shares, strict=True)
    )
    found = Gaussian().pseudo_gradient(centre, models, shares)
    for name, expected in _gradients(loss, centre).items():
        torch.testing.assert_close(found[name].detach(), expected)


def test_a_coordinate_no_client_moved_has_no_gradient_at_all():
    centre = _model("server")
    models = [{n: v.clone() for n, v in centre.items()} for _ in range(7)]
    found = Gaussian().pseudo_gradient(centre, models, _shares(7))
    assert not any(value.any() for value in found.values())


def test_m_steps_and_pseudo_gradients_change_no_input():
    centre, models = _model("server"), _models(3)
    before = tree.clone((centre, tuple(models)))
    for prior in (Gaussian(0.1), Laplace(0.1)):
        prior.m_step(models, _shares(3))
    Gaussian(0.1).pseudo_gradient(centre, models, _shares(3))
    assert tree.equal(before, (centre, tuple(models)))


@pytest.mark.parametrize("prior", [Gaussian, Laplace])
def test_a_negative_strength_is_refused(prior):
    with pytest.raises(ConfigError, match="must be >= 0"):
        prior(-1.0)
