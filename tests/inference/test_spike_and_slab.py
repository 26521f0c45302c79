"""The spike-and-slab prior against closed forms and autograd.

Specification fedsparse, sections 3, 4 and 10.
"""

import math

import numpy as np
import pytest
import torch

from fedsieve.core import keys
from fedsieve.core.keys import fold
from fedsieve.inference.spike_and_slab import (
    LEAST_SHARE,
    Drawn,
    Gated,
    Slab,
    SpikeAndSlab,
    inverse_softplus,
)
from fedsieve.sparsity.hard_concrete import HardConcrete

AXES = {"conv": (1, 2, 3), "fc": (0,), "loose": ()}
SHAPES = {"conv": (4, 3, 2, 2), "fc": (5, 6), "loose": (3, 2), "bias": (5,)}
GROUPS = {"conv": (4, 1, 1, 1), "fc": (1, 6), "loose": (3, 2)}


def prior(**changes):
    return SpikeAndSlab(AXES, **{"gate_cost": 3e-3, "cross_entropy": 2e-3, **changes})


def weights(seed):
    return {n: keys.normal(fold(0, n, seed), shape) for n, shape in SHAPES.items()}


def gated(seed, it=None, spread=2.0):
    """Random weights with gates whose logits are about `spread` from 0."""
    it = it or prior()
    w = weights(seed)
    shift = {
        n: it.temperature * spread * keys.normal(fold(1, n, seed), g) for n, g in GROUPS.items()
    }
    norms = it.norms(w)
    return Gated(w, {n: inverse_softplus(norms[n] - shift[n]) for n in GROUPS})


def logits_by_hand(it, local):
    found = {}
    for name, axes in AXES.items():
        w = local.weights[name].double().numpy()
        norm = np.sqrt((w**2).sum(axis=axes, keepdims=True)) if axes else np.abs(w)
        found[name] = (norm - np.log1p(np.exp(local.raw_thresholds[name].double().numpy()))) / (
            it.temperature
        )
    return found


def test_inverse_softplus_brings_thresholds_back():
    tau = torch.logspace(-6, 1, 200)
    torch.testing.assert_close(torch.nn.functional.softplus(inverse_softplus(tau)), tau)


def test_groups_are_filters_features_and_single_weights():
    for name, norm in prior().norms(weights(0)).items():
        assert norm.shape == GROUPS[name]
    local = gated(0)
    for name, expected in logits_by_hand(prior(), local).items():
        # float32 norms near 1 over T = 1e-3: an error of 1e-7 there is 1e-4 here.
        np.testing.assert_allclose(prior().logits(local)[name], expected, atol=2e-3)


@pytest.mark.parametrize("is_free", [False, True])
def test_gates_start_open_with_the_asked_probability(is_free):
    it = prior(is_free=is_free)
    start = it.open(weights(0), 0.99, smallest=1e-4)
    for name, logits in it.logits(start).items():
        can_reach = it.norms(start.weights)[name] > 0.0047
        found = torch.sigmoid(logits)[can_reach | torch.tensor(is_free)]
        torch.testing.assert_close(found, torch.full_like(found, 0.99), atol=2e-5, rtol=0)


def test_a_weight_too_small_for_it_starts_at_the_smallest_threshold():
    it = SpikeAndSlab({"w": ()}, gate_cost=0, cross_entropy=0)
    start = it.open({"w": torch.tensor([1e-3])}, 0.99, smallest=1e-4)
    assert it.logits(start)["w"].item() == pytest.approx((1e-3 - 1e-4) / 1e-3, rel=1e-4)


def test_thresholds_receive_the_gradient_of_probabilities_and_weights_do_not():
    local = gated(0)
    w = {n: v.requires_grad_() for n, v in local.weights.items()}
    raw = {n: v.requires_grad_() for n, v in local.raw_thresholds.items()}
    total = sum(logits.sum() for logits in prior().logits(Gated(w, raw)).values())
    grads = torch.autograd.grad(total, [*raw.values(), *(w[n] for n in GROUPS)], allow_unused=True)
    for (name, v), found in zip(raw.items(), grads, strict=False):
        torch.testing.assert_close(found, -torch.sigmoid(v) / 1e-3, msg=name)
    assert grads[len(raw) :] == (None,) * len(GROUPS)


@pytest.mark.parametrize("precision", [0.0, 0.4])
def test_the_penalty_is_the_written_out_sum_over_single_weights(precision):
    it, centre, local = prior(precision=precision), gated(1), gated(0)
    theta = {n: torch.tensor(v) for n, v in logits_by_hand(it, centre).items()}
    beta, low, high = 2 / 3, -0.1, 1.1
    expected, constant = 0.0, 0.0
    for name, logits in logits_by_hand(it, local).items():
        active = 1 / (1 + np.exp(-(logits - beta * math.log(-low / high))))
        probability = 1 / (1 + np.exp(-theta[name].numpy()))
        drift = (local.weights[name] - centre.weights[name]).double().numpy() ** 2
        expected += 3e-3 * np.broadcast_to(active, drift.shape).sum()
        expected -= (
            2e-3 * (active * np.log(probability) + (1 - active) * np.log1p(-probability)).sum()
        )
        constant -= 2e-3 * np.log1p(-probability).sum()
        expected += precision / 2 * (active * drift).sum()
    bias = (local.weights["bias"] - centre.weights["bias"]).double().numpy()
    expected += precision / 2 * (bias**2).sum()
    found = it.penalty(local, Slab(centre.weights, it.logits(centre)))
    assert found.item() == pytest.approx(expected - constant, rel=1e-3)


def test_a_model_of_gated_weights_alone_is_tied_by_those():
    it = SpikeAndSlab({"w": ()}, gate_cost=0, cross_entropy=0, precision=0.4, is_free=True)
    local = Gated({"w": torch.tensor([3.0])}, {"w": torch.tensor([-1.0])})  # open: logit 1000
    found = it.penalty(local, Slab({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.0])}))
    assert found.item() == pytest.approx(0.4 / 2 * (3 - 1) ** 2)


def test_a_forward_pass_sees_hard_concrete_gates_one_for_each_group():
    it, local, key = prior(), gated(0), fold(3)
    effective = it.effective(local, key)
    for name, logits in it.logits(local).items():
        gates = HardConcrete().sample(logits, fold(key, "gates", name))
        torch.testing.assert_close(effective[name], local.weights[name] * gates)
    assert effective["bias"] is local.weights["bias"]


@pytest.mark.parametrize("is_shifted", [False, True])
def test_a_shifted_gate_is_open_in_training_as_often_as_in_uploads(is_shifted):
    """Else P(z > 0) is sigmoid(l + 2/3 log 11), which is more (section 9, point 6)."""
    count, logit = 100_000, 0.3
    it = SpikeAndSlab({"w": ()}, gate_cost=1, cross_entropy=0, is_free=True, is_shifted=is_shifted)
    local = Gated({"w": torch.ones(count)}, {"w": torch.full((count,), -1e-3 * logit)})
    share = (it.effective(local, fold(12))["w"] > 0).double().mean().item()
    shift = 0 if is_shifted else 2 / 3 * math.log(11)
    expected = 1 / (1 + math.exp(-logit - shift))
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count)
    cost = it.penalty(local, Slab(local.weights, {"w": torch.zeros(count)})).item()
    assert cost / count == pytest.approx(expected, rel=1e-4)


def test_the_mean_of_ten_thousand_uploads_is_pi_times_the_weights():
    it = SpikeAndSlab({"w": (1,)}, gate_cost=0, cross_entropy=0)
    w = torch.tensor([[1.0, -2.0], [0.5, 0.3], [3.0, 1.0]])
    logits = torch.tensor([[-1.0], [0.0], [2.0]])
    raw = inverse_softplus(w.norm(dim=1, keepdim=True) - 1e-3 * logits)
    local = Gated({"w": w}, {"w": raw})
    draws = [it.draw(local, fold(5, number)) for number in range(10_000)]
    mean = torch.stack([one.weights["w"] for one in draws]).mean(0)
    pi = torch.sigmoid(it.logits(local)["w"])
    deviation = w.abs() * (pi * (1 - pi) / 10_000).sqrt()  # of the mean
    assert ((mean - pi * w).abs() < 4 * deviation).all()
    for one in draws[:100]:
        assert torch.equal(one.weights["w"], w * one.gates["w"])


def drawn(seed, it, local):
    one = it.draw(local, fold(7, seed))
    moved = {n: v + 0.1 * keys.normal(fold(8, n, seed), v.shape) for n, v in one.weights.items()}
    kept = {n: v * one.gates[n] if n in one.gates else v for n, v in moved.items()}
    return Drawn(kept, one.gates)


def test_server_gradients_are_those_of_autograd_on_the_mean_log_prior():
    # In double precision, and at T = 0.1: logits of float32 norms over 1e-3 have errors of 1e-4.
    it = prior(temperature=0.1)
    centre = gated(0, it)
    replies = [drawn(seed, it, centre) for seed in range(3)]
    shares = [0.5, 0.3, 0.2]
    w = {n: v.double().requires_grad_() for n, v in centre.weights.items()}
    v = {n: x.double().requires_grad_() for n, x in centre.raw_thresholds.items()}
    loss = torch.zeros((), dtype=torch.float64)
    for reply, share in zip(replies, shares, strict=True):
        for name, weight in w.items():
            z = reply.gates[name].double() if name in reply.gates else torch.ones(())
            loss = loss + share * (z * (weight - reply.weights[name]) ** 2).sum() / 2
        for name, raw in v.items():
            norm = it.norms({n: x.detach() for n, x in w.items()})[name]
            theta = torch.sigmoid((norm - torch.nn.functional.softplus(raw)) / it.temperature)
            bernoulli = torch.distributions.Bernoulli(probs=theta)
            loss = loss - share * bernoulli.log_prob(reply.gates[name].double()).sum()
    found = it.pseudo_gradient(centre, replies, shares)
    grads = torch.autograd.grad(loss, [*w.values(), *v.values()])
    for (name, expected), value in zip(
        [*zip(w, grads, strict=False), *zip(v, grads[len(w) :], strict=True)],
        [*found.weights.values(), *found.raw_thresholds.values()],
        strict=True,
    ):
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-5, msg=name)


def test_gates_that_all_clients_keep_are_opened_further():
    """g_v > 0, so v and tau fall and theta rises (section 3)."""
    it = prior()
    centre = gated(0, it)
    kept = {n: torch.ones(g, dtype=torch.bool) for n, g in GROUPS.items()}
    found = it.pseudo_gradient(centre, [Drawn(centre.weights, kept)], [1.0])
    assert all((g > 0).all() for g in found.raw_thresholds.values())
    assert not any(g.any() for g in found.weights.values())


@pytest.mark.parametrize("most", [0.99, 0.6, 0.3])
def test_the_closed_form_takes_means_over_open_gates_and_theta_from_their_share(most):
    it = SpikeAndSlab({"w": (1,)}, gate_cost=0, cross_entropy=0, is_free=True)
    centre = Gated({"w": torch.full((3, 2), 9.0), "b": torch.zeros(1)}, {"w": torch.zeros(3, 1)})
    gates = [[1, 0, 0], [1, 1, 0]]
    replies = []
    for g, value in zip(gates, (2.0, 4.0), strict=True):
        kept = torch.tensor(g)[:, None].bool()
        local = {"w": value * kept.float().expand(3, 2), "b": torch.full((1,), value)}
        replies.append(Drawn(local, {"w": kept}))
    found = it.m_step(centre, replies, [0.25, 0.75], most=most)
    assert found.weights["b"].item() == 0.25 * 2 + 0.75 * 4
    assert found.weights["w"][:, 0].tolist() == [0.25 * 2 + 0.75 * 4, 4.0, 9.0]
    theta = torch.sigmoid(it.logits(found)["w"])[:, 0]
    expected = torch.tensor([most, min(most, 0.75), LEAST_SHARE])
    torch.testing.assert_close(theta, expected)


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("temperature", [1e-3, 1.0])
def test_a_closed_group_never_opens_and_costs_nothing(is_free, temperature):
    it = prior(is_free=is_free, temperature=temperature)
    start = it.open(weights(0), 0.99, smallest=1e-4)
    alive = {n: keys.uniform(fold(9, n), g) < 0.5 for n, g in GROUPS.items()}
    pruned = {n: v * alive[n] if n in alive else v for n, v in start.weights.items()}
    closed = it.close(Gated(pruned, start.raw_thresholds), alive)
    raw = {n: v.clone().requires_grad_() for n, v in closed.raw_thresholds.items()}
    local = Gated(pruned, raw)
    for seed in range(20):
        one = it.draw(local, fold(10, seed))
        assert not any((gates & ~alive[n]).any() for n, gates in one.gates.items())
        effective = it.effective(local, fold(11, seed))
        assert not any(effective[n].where(~alive[n], 0).any() for n in alive)
    penalty = it.penalty(local, Slab(pruned, it.logits(closed)))
    for (name, value), grad in zip(
        raw.items(), torch.autograd.grad(penalty, list(raw.values())), strict=True
    ):
        assert value.shape == grad.shape
        assert not grad[~alive[name]].any()
        assert grad[alive[name]].any()
