"""Gaussian posteriors of weights: local reparametrisation, the bound, masks, pooling.

Kingma et al., "Variational Dropout and the Local Reparameterization Trick", NeurIPS 2015; Molchanov
et al., "Variational Dropout Sparsifies Deep Neural Networks", ICML 2017. A weight is N(theta, s2);
log alpha = log s2 - 2 log |theta| is its noise over its signal (specification variational_dropout,
sections 2 and 3).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedsieve.core import keys
from fedsieve.core.errors import ModelError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Mask, Params
from fedsieve.core.method import Batch, Task
from fedsieve.sparsity import masks

LARGEST_LOG_ALPHA = 10.0
_TINY = 1e-8  # keeps logarithms and roots away from 0
_PIECE = 1 << 16  # weights whose intermediate values fit into a core's cache
_K1, _K2, _K3 = 0.63576, 1.8732, 1.48695


class Posterior(NamedTuple):
    """Weights are N(weights, exp(log_variance)); those without a log-variance are just numbers."""

    weights: Params
    log_variance: Params


def log_alpha(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Log of variance over squared mean, cut off at -10 and 10."""
    ratio = log_variance - 2 * torch.log(mean.abs() + _TINY)
    return ratio.clamp(-LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)


def kl(log_alpha: Tensor) -> Tensor:
    """KL of each weight to the log-uniform prior, up to the constant that makes it 0 at inf."""
    return (
        _K1 * torch.sigmoid(-_K2 - _K3 * log_alpha)  # k1 - k1 sigmoid(x) = k1 sigmoid(-x)
        + 0.5 * functional.softplus(-log_alpha)
    )


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The sum of `kl` over the weights of a layer."""
    total: Tensor = _Divergence.apply(mean, log_variance)  # type: ignore[no-untyped-call]
    return total


class _Divergence(Function):
    """Value and slopes in one pass, piece by piece: most of the time would go into memory."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_variance: Tensor) -> Tensor:
        total, slopes = mean.new_zeros(()), (torch.empty_like(mean), torch.empty_like(log_variance))
        rows = max(_PIECE * mean.shape[0] // max(mean.numel(), 1), 1)
        pieces = (torch.split(part, rows) for part in (mean, log_variance, *slopes))
        for at, lv, to_mean, to_variance in zip(*pieces, strict=True):
            size = at.abs() + _TINY
            free = lv - 2 * torch.log(size)
            x = free.clamp(-LARGEST_LOG_ALPHA, LARGEST_LOG_ALPHA)
            gate = torch.sigmoid(-_K2 - _K3 * x)
            total += _K1 * gate.sum() + 0.5 * functional.softplus(-x).sum()
            slope = _K1 * _K3 * gate * (gate - 1) - 0.5 * torch.sigmoid(-x)
            torch.mul(slope, free == x, out=to_variance)
            torch.div(-2 * to_variance * at.sign(), size, out=to_mean)
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        to_mean, to_variance = ctx.saved_tensors
        return grads[0] * to_mean, grads[0] * to_variance


def start(task: Task, key: Key, log_variance: float, spread: float = 0.0) -> Posterior:
    """Fresh weights; log-variances are draws from N(log_variance, spread^2)."""
    weights = task.init_params(fold(key, "weights"))
    kinds = {"linear", "conv", "depthwise"}
    names = [layer.weight for layer in task.graph.layers if layer.kind in kinds]
    if not names:
        raise ModelError("no linear layer and no convolution: no weight can have a variance.")
    noise = {n: keys.normal(fold(key, "variance", n), weights[n].shape) for n in names}
    return Posterior(weights, {n: log_variance + spread * draws for n, draws in noise.items()})


def kept(posterior: Posterior, log_threshold: float) -> Mask:
    """True where the signal of a weight is not drowned by its noise."""
    weights, variances = posterior
    return {n: log_alpha(weights[n], lv) <= log_threshold for n, lv in variances.items()}


def bound(task: Task, at: Posterior, batch: Batch, key: Key, kl_scale: float, mask: Mask) -> Tensor:
    """The negative bound: mean loss under noise, plus `kl_scale` times the KL of all weights.

    Weights that `mask` names and does not keep are left out of the forward pass.
    """
    loss = task.loss(draw(at, key, mask), batch, key)
    if not kl_scale:
        return loss
    divergences = [divergence(at.weights[n], lv) for n, lv in at.log_variance.items()]
    return loss + kl_scale * torch.stack(divergences).sum() if divergences else loss


def draw(at: Posterior, key: Key, mask: Mask) -> Params:
    """Parameters with Gaussian weights where there is a variance, 0 outside `mask`.

    A layer that meets one gives outputs with their own noise for each example.
    """
    means = masks.apply(at.weights, mask)
    variances = masks.apply({n: lv.exp() for n, lv in at.log_variance.items()}, mask)
    noisy = {
        name: GaussianWeight(means[name], variance, fold(key, "noise", name))
        for name, variance in variances.items()
    }
    return means | cast("Params", noisy)


class GaussianWeight:
    """A weight that torch's linear maps and convolutions take in place of a tensor.

    They return mean + sqrt(variance) * noise, where mean and variance are those of the output if
    every weight is drawn anew for every example.
    """

    layers: ClassVar = {functional.linear, functional.conv1d, functional.conv2d, functional.conv3d}

    def __init__(self, mean: Tensor, variance: Tensor, key: Key) -> None:
        self.mean, self.variance, self._key = mean, variance, key

    def dim(self) -> int:
        return self.mean.dim()

    def clone(self, memory_format: torch.memory_format) -> "GaussianWeight":
        mean, variance = (x.clone(memory_format=memory_format) for x in (self.mean, self.variance))
        return GaussianWeight(mean, variance, self._key)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Tensor],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        named = dict(zip(("input", "weight", "bias"), args, strict=False)) | dict(kwargs or {})
        weight = named.pop("weight", None)
        if function not in cls.layers or not isinstance(weight, cls):
            raise ModelError(
                f"{getattr(function, '__name__', function)} met a Gaussian weight: they work in "
                "linear layers and convolutions of torch.nn alone. Build the model from these."
            )
        x, bias = named.pop("input"), named.pop("bias", None)
        mean = function(x, weight.mean, bias, *args[3:], **named)
        variance = function(x * x, weight.variance, None, *args[3:], **named)
        noise = keys.normal(weight._key, mean.shape)
        return torch.addcmul(mean, torch.sqrt(variance + _TINY), noise)


def pool(posteriors: Sequence[Posterior], kept: Sequence[Mask]) -> Posterior:
    """The normalised geometric mean of posteriors, for each weight over those that keep it.

    Its mean is sum_i p_i mean_i / sum_i p_i for precisions p_i, its own precision the mean of p_i;
    both are 0 where nobody keeps a weight. Weights without a variance everywhere: the plain mean.
    """
    weights, log_variance = dict[str, Tensor](), dict[str, Tensor]()
    for name in posteriors[0].weights:
        means = torch.stack([p.weights[name] for p in posteriors])
        if not all(name in p.log_variance for p in posteriors):
            weights[name] = means.mean(0)
            continue
        is_kept = torch.stack([mask[name] for mask in kept])
        logs = -torch.stack([p.log_variance[name] for p in posteriors]).where(is_kept, math.inf)
        largest = logs.amax(0)  # taken out: precisions themselves may overflow
        precisions = (logs - largest).exp().where(is_kept, 0)
        total, count = precisions.sum(0), is_kept.sum(0)
        weights[name] = torch.where(count > 0, (precisions * means).sum(0) / total, 0)
        log_variance[name] = torch.where(count > 0, torch.log(count / total) - largest, 0)
    return Posterior(weights, log_variance)


def pool_lost(common: Params, lost: Sequence[Posterior], kept: Sequence[Mask]) -> Posterior:
    """`pool` by differences: what is lost against common weights and log-variances `common`.

    Differences survive a wire that rounds, where small steps of -10 would not.
    """
    kept = [masks.completed(mask, common) for mask in kept]
    posteriors = [Posterior(w, {n: common[n] - x for n, x in lv.items()}) for w, lv in lost]
    weights, pooled = pool(posteriors, kept)
    votes = masks.votes(kept)
    return Posterior(
        weights, {n: (common[n] - lv).where(votes[n] > 0, 0) for n, lv in pooled.items()}
    )
