"""Gaussian weights against numerical integration, direct sampling and autograd."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsieve.core import keys
from fedsieve.core.errors import ModelError
from fedsieve.core.keys import Key, fold
from fedsieve.core.method import Batch
from fedsieve.inference import variational
from fedsieve.inference.variational import GaussianWeight, Posterior
from fedsieve.models.task import ModelTask

DRAWS = 10_000


def exact_kl(log_alpha):
    """E log|1 + sqrt(alpha) eps| - log(alpha) / 2, less its limit for infinite alpha.

    The limit is E log|eps| = -(gamma + log 2) / 2. The middle of each of a million cells of the
    normal distribution is never on the singularity of the logarithm, which is integrable.
    """
    cells = np.linspace(-12, 12, 1_000_002)
    eps = (cells[1:] + cells[:-1]) / 2
    density = np.exp(-eps * eps / 2) / math.sqrt(2 * math.pi) * (cells[1] - cells[0])
    expected = (np.log(np.abs(1 + math.exp(log_alpha / 2) * eps)) * density).sum()
    return expected - log_alpha / 2 + (np.euler_gamma + math.log(2)) / 2


def test_the_kl_term_is_the_numerical_integral_within_two_hundredths():
    for log_alpha in np.linspace(-8, 8, 33):
        ours = float(variational.kl(torch.tensor(float(log_alpha))))
        assert ours == pytest.approx(exact_kl(log_alpha), abs=0.02)


def test_the_kl_term_falls_with_alpha_and_vanishes():
    values = variational.kl(torch.linspace(-10, 10, 2001, dtype=torch.float64))
    assert (values.diff() < 0).all()
    assert float(variational.kl(torch.tensor(60.0))) == pytest.approx(0, abs=1e-12)


def test_the_gradient_of_the_kl_term_is_its_difference_quotient():
    mean = torch.tensor([0.3, -0.02, 1.5], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([-4.0, -7.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda m, v: variational.kl(variational.log_alpha(m, v)), (mean, variance)
    )


def test_the_divergence_of_a_layer_and_its_slopes_are_those_of_its_weights():
    for shape in [(5, 40_000), (3, 2, 5, 5), (1, 1), (0, 4)]:
        mean = keys.normal(fold(Key(0), "mean", *shape), shape).double()
        mean.view(-1)[::7] = 0  # where log alpha is cut off
        variance = 8 * keys.normal(fold(Key(0), "variance", *shape), shape).double() - 4
        at = mean.requires_grad_(), variance.requires_grad_()
        plain = variational.kl(variational.log_alpha(*at)).sum()
        ours = variational.divergence(*at)
        torch.testing.assert_close(ours, plain)
        expected = torch.autograd.grad(3 * plain, at)
        torch.testing.assert_close(torch.autograd.grad(3 * ours, at), expected)
        if mean.dim() == 4:  # as the local loop lays them out
            laid = [x.detach().float().contiguous(memory_format=torch.channels_last) for x in at]
            turned = [x.requires_grad_() for x in laid]
            slopes = torch.autograd.grad(3 * variational.divergence(*turned), turned)
            for slope, value in zip(slopes, expected, strict=True):
                torch.testing.assert_close(slope, value.float(), rtol=1e-4, atol=1e-5)


def test_log_alpha_is_noise_over_signal_between_its_limits():
    mean, log_variance = torch.tensor([2.0, 0.0, 1.0]), torch.tensor([3.0, 0.0, -50.0])
    found = variational.log_alpha(mean, log_variance)
    expected = torch.tensor([3 - 2 * math.log(2), 10.0, -10.0])
    torch.testing.assert_close(found, expected)


LAYERS = {
    "linear": (nn.Linear(6, 3), (6,)),
    "linear without bias": (nn.Linear(6, 3, bias=False), (6,)),
    "strided convolution": (nn.Conv2d(2, 2, 3, stride=2, padding=1), (2, 4, 4)),
    "depthwise convolution": (nn.Conv2d(2, 2, 3, groups=2), (2, 3, 3)),
    "padded convolution": (nn.Conv1d(1, 2, 3, padding="same"), (1, 4)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_local_reparametrisation_has_the_moments_of_direct_sampling(kind):
    layer, shape = LAYERS[kind]
    weight, key = layer.weight.detach(), fold(0, kind)
    variance = keys.uniform(fold(key, "variance"), weight.shape) * 0.2
    x = keys.normal(fold(key, "x"), shape).expand(DRAWS, *shape)
    ours = _outputs(layer, GaussianWeight(weight, variance, fold(key, "noise")), x)
    noise = keys.normal(fold(key, "weights"), (DRAWS, *weight.shape))
    sampled = weight + variance.sqrt() * noise
    direct = torch.func.vmap(lambda w: _outputs(layer, w, x[:1])[0])(sampled)
    spread = direct.var(0)
    off_mean = (ours.mean(0) - direct.mean(0)) / (2 * spread / DRAWS).sqrt()
    off_variance = (ours.var(0) - spread) / (spread * math.sqrt(4 / DRAWS))
    assert off_mean.abs().max() < 3
    assert off_variance.abs().max() < 3


def _outputs(layer, weight, x):
    if isinstance(layer, nn.Linear):
        return functional.linear(x, weight, layer.bias.detach() if layer.bias is not None else None)
    convolve = functional.conv2d if isinstance(layer, nn.Conv2d) else functional.conv1d
    settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return convolve(x, weight, layer.bias.detach(), *settings)


def small_task():
    def build():
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
        )

    return ModelTask(build, "classes", (1, 4, 4))


def small_batch():
    return Batch(keys.normal(Key(1), (5, 1, 4, 4)), torch.tensor([0, 1, 2, 3, 0]))


def test_any_model_of_linear_layers_and_convolutions_takes_gaussian_weights():
    """The gradient of the bound against the formulas written out, with the same noise."""
    task, batch, key = small_task(), small_batch(), Key(3)
    at = variational.start(task, Key(2), -3.0, 0.5)
    leaves = [t.clone().requires_grad_() for part in at for t in part.values()]
    names = list(at.weights)
    weights = dict(zip(names, leaves, strict=False))
    variances = dict(zip(at.log_variance, leaves[len(names) :], strict=True))

    def noisy(layer, function, x, name):
        mean = function(x, weights[f"{name}.weight"]) + weights[f"{name}.bias"].reshape(layer)
        variance = function(x**2, variances[f"{name}.weight"].exp())
        noise = keys.normal(fold(key, "noise", f"{name}.weight"), mean.shape)
        return mean + torch.sqrt(variance + 1e-8) * noise

    x = noisy((3, 1, 1), lambda a, w: functional.conv2d(a, w, padding=1), batch.x, "0")
    x = noisy((4,), functional.linear, functional.relu(x).flatten(1), "3")
    divergence = sum(
        variational.kl((lv - 2 * torch.log(weights[n].abs() + 1e-8)).clamp(-10, 10)).sum()
        for n, lv in variances.items()
    )
    loss = functional.cross_entropy(x, batch.y) + 0.01 * divergence
    expected = torch.autograd.grad(loss, leaves)

    ours = [t.clone().requires_grad_() for t in leaves]
    posterior = Posterior(
        dict(zip(names, ours, strict=False)),
        dict(zip(at.log_variance, ours[len(names) :], strict=True)),
    )
    found = torch.autograd.grad(variational.bound(task, posterior, batch, key, 0.01, {}), ours)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_weights_outside_the_mask_neither_add_signal_nor_noise():
    task, batch, key = small_task(), small_batch(), Key(3)
    at = variational.start(task, Key(2), -1.0)
    nothing = {n: torch.zeros_like(lv, dtype=torch.bool) for n, lv in at.log_variance.items()}
    biases = {n: torch.zeros_like(w) if n in nothing else w for n, w in at.weights.items()}
    clipped = variational.bound(task, at, batch, key, 0.0, nothing)
    # The root of 1e-8 keeps the derivative finite: noise of 1e-4 remains.
    assert float(clipped) == pytest.approx(float(task.loss(biases, batch, key)), abs=1e-3)


def test_other_operations_refuse_gaussian_weights():
    weight = GaussianWeight(torch.ones(2, 2), torch.ones(2, 2), Key(0))
    with pytest.raises(ModelError, match="matmul met a Gaussian weight"):
        torch.matmul(torch.ones(1, 2), weight)


def test_precisions_beyond_the_range_of_float32_are_pooled():
    own = [
        Posterior({"w": torch.tensor([value])}, {"w": torch.tensor([-100.0])})
        for value in (1.0, 3.0)
    ]
    pooled = variational.pool(own, [{"w": torch.tensor([True])}] * 2)
    assert (float(pooled.weights["w"]), float(pooled.log_variance["w"])) == (2.0, -100.0)


def test_a_model_without_a_layer_for_variances_is_refused():
    norm = nn.Sequential(nn.LayerNorm(4))
    with pytest.raises(ModelError, match="no linear layer and no convolution"):
        variational.start(ModelTask(norm, "values", (4,)), Key(0), -8.0)


def test_pooling_weights_means_by_precision_and_averages_precisions():
    generator = np.random.default_rng(0)
    means, variances = generator.normal(size=(3, 5)), generator.uniform(0.1, 2, size=(3, 5))
    kept = np.array([[1, 1, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 0, 0, 1]], dtype=bool)
    posteriors = [
        Posterior(
            {"w": torch.tensor(m), "b": torch.tensor([float(i)])},
            {"w": torch.tensor(v).log()},
        )
        for i, (m, v) in enumerate(zip(means, variances, strict=True))
    ]
    pooled = variational.pool(posteriors, [{"w": torch.tensor(k)} for k in kept])
    for j in range(5):
        precisions = [1 / variances[i, j] for i in range(3) if kept[i, j]]
        mine = [means[i, j] for i in range(3) if kept[i, j]]
        if not mine:
            assert float(pooled.weights["w"][j]) == float(pooled.log_variance["w"][j]) == 0
            continue
        expected = np.dot(precisions, mine) / sum(precisions)
        assert float(pooled.weights["w"][j]) == pytest.approx(expected)
        assert math.exp(-pooled.log_variance["w"][j]) == pytest.approx(np.mean(precisions))
    assert pooled.weights["b"].tolist() == [1.0]
