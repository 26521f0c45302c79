"""Optimisers against torch.optim, Yogi against its formula."""

import numpy as np
import pytest
import torch

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold, normal
from fedsieve.optim.optimisers import (
    SGD,
    Adagrad,
    Adam,
    Adamax,
    Yogi,
    init_moments,
    update,
)

LR = 0.05
STEPS = 6
SHAPES = {"w": (4, 3), "kernel": (2, 3, 3, 3), "scale": (), "none": (0,)}


def _draw(*path):
    return {name: normal(fold(0, *path, name), shape) for name, shape in SHAPES.items()}


def _run(optimiser, steps=STEPS):
    """Parameters after every step on gradients that do not depend on the parameters."""
    params, history = _draw("start"), []
    moments = init_moments(optimiser, params)
    for t in range(steps):
        params, moments = update(optimiser, params, _draw("grad", t), moments, LR)
        history.append(params)
    return history


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (SGD(), torch.optim.SGD, {}),
        (SGD(0.9), torch.optim.SGD, {"momentum": 0.9}),
        (SGD(0.9, 0.1), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
        (Adam(), torch.optim.Adam, {}),
        (
            Adam(0.8, 0.9, 1e-3, 0.1),
            torch.optim.Adam,
            {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1},
        ),
        (Adam(beta2=0.5, amsgrad=True), torch.optim.Adam, {"betas": (0.9, 0.5), "amsgrad": True}),
        (Adamax(), torch.optim.Adamax, {}),
        (
            Adamax(0.5, 0.6, 1e-2, 0.1),
            torch.optim.Adamax,
            {"betas": (0.5, 0.6), "eps": 1e-2, "weight_decay": 0.1},
        ),
        (Adagrad(), torch.optim.Adagrad, {}),
        (
            Adagrad(1e-3, 0.5, 0.1),
            torch.optim.Adagrad,
            {"eps": 1e-3, "initial_accumulator_value": 0.5, "weight_decay": 0.1},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_step_is_torch_s(ours, theirs, options):
    reference = {name: value.requires_grad_() for name, value in _draw("start").items()}
    optimiser = theirs(reference.values(), lr=LR, **options)
    for t, params in enumerate(_run(ours)):
        for name, grad in _draw("grad", t).items():
            reference[name].grad = grad
        optimiser.step()
        for name, value in params.items():
            torch.testing.assert_close(value, reference[name].detach(), rtol=1e-5, atol=1e-7)


def test_the_memory_order_of_gradients_and_moments_does_not_matter():
    def turned(value):
        return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value

    start, grads = _draw("start"), _draw("grad")
    for optimiser in (SGD(0.9), Adam(), Adam(amsgrad=True), Adamax(), Adagrad(), Yogi()):
        moments = init_moments(optimiser, start)
        plain = update(optimiser, start, grads, moments, LR)
        mixed = update(
            optimiser,
            start,
            tree.map_leaves(turned, grads),
            tree.map_leaves(turned, moments),
            LR,
        )
        assert tree.equal(mixed, plain)


def test_yogi_follows_its_formula():
    beta1, beta2, eps, decay = 0.8, 0.95, 1e-3, 0.1
    w = _draw("start")["w"].double().numpy()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, params in enumerate(_run(Yogi(beta1, beta2, eps, decay)), 1):
        g = _draw("grad", t - 1)["w"].double().numpy() + decay * w
        m = beta1 * m + (1 - beta1) * g
        v -= (1 - beta2) * np.sign(v - g**2) * g**2
        w = w - LR * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        np.testing.assert_allclose(params["w"], w, rtol=1e-5, atol=1e-6)


def test_yogi_moves_its_second_moment_by_less_than_adam_after_a_large_gradient():
    # v = 1, g = 0.1: Adam gives .99 v + .01 g^2 = 0.9901, Yogi v - .01 g^2 = 0.9999.
    params, grad = {"w": torch.zeros(1)}, {"w": torch.tensor([0.1])}
    for optimiser, expected in ((Adam(beta2=0.99), 0.9901), (Yogi(beta2=0.99), 0.9999)):
        moments = init_moments(optimiser, params) | {"second/w": torch.ones(1)}
        _, after = update(optimiser, params, grad, moments, LR)
        assert after["second/w"].item() == pytest.approx(expected, rel=1e-6)


OPTIMISERS = [SGD(), SGD(0.9, 0.1), Adam(amsgrad=True), Adamax(), Adagrad(initial=0.1), Yogi()]


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda value: type(value).__name__)
def test_update_leaves_its_inputs_untouched(optimiser):
    params, grads = _draw("start"), _draw("grad")
    moments = init_moments(optimiser, params)
    for _ in range(2):
        before = tree.clone((params, grads, moments))
        after_params, after_moments = update(optimiser, params, grads, moments, LR)
        assert tree.equal(before, (params, grads, moments))
        assert int(after_moments["step"]) == int(moments["step"]) + 1
        params, moments = after_params, after_moments


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda value: type(value).__name__)
def test_moments_are_one_tensor_per_slot_and_parameter(optimiser):
    params = _draw("start")
    moments = init_moments(optimiser, params)
    assert set(moments) == {"step", *(f"{s}/{n}" for s in optimiser.slots for n in params)}
    assert all(not value.any() for value in moments.values())
    assert all(
        moments[f"{s}/{n}"].shape == params[n].shape for s in optimiser.slots for n in params
    )


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda value: type(value).__name__)
def test_a_coordinate_without_gradient_or_decay_stays(optimiser):
    optimiser = type(optimiser)()
    params, zero = {"w": torch.tensor([1.5])}, {"w": torch.zeros(1)}
    after, _ = update(optimiser, params, zero, init_moments(optimiser, params), LR)
    assert after["w"].item() == 1.5


def test_the_first_step_of_adam_and_adamax_is_the_rate_times_the_sign():
    params, grads = {"w": torch.zeros(3)}, {"w": torch.tensor([3.0, -0.2, 5.0])}
    for optimiser in (Adam(), Adamax(), Adam(amsgrad=True)):
        after, _ = update(optimiser, params, grads, init_moments(optimiser, params), LR)
        torch.testing.assert_close(after["w"], -LR * grads["w"].sign(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(momentum=-0.1),
        lambda: SGD(weight_decay=-1),
        lambda: Adam(beta1=1.0),  # 1 - beta1^t would be 0
        lambda: Adam(beta2=1.0),
        lambda: Adamax(beta1=1.5),
        lambda: Yogi(eps=-1e-3),
        lambda: Adagrad(weight_decay=-1),
    ],
)
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigError, match="must be"):
        make()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_where_a_gradient_is_absent_nothing_moves_and_moments_are_forgotten(decay):
    optimiser, present = Adam(weight_decay=decay), torch.tensor([True, False, True])
    params = {"w": torch.ones(3), "b": torch.ones(1)}
    grads = {"w": torch.tensor([1.0, 2.0, 3.0]), "b": torch.ones(1)}
    moved, moments = update(optimiser, params, grads, init_moments(optimiser, params), LR)
    held = {"w": torch.where(present, grads["w"], 0), "b": grads["b"]}
    after, later = update(optimiser, moved, held, moments, LR, {"w": present})
    whole, _ = update(optimiser, moved, held, moments, LR)
    assert torch.equal(after["w"][1], moved["w"][1])
    assert not torch.equal(whole["w"][1], moved["w"][1])  # its momentum would carry it on
    assert torch.equal(after["w"][present], whole["w"][present])
    assert torch.equal(after["b"], whole["b"])
    assert float(later["first/w"][1]) == float(later["second/w"][1]) == 0
    assert float(moments["first/w"][1]) != 0
