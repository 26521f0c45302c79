"""Optimisers as values; their moments are data.

`step` works in place on tensors its caller owns: the local loop on its working copy, `update` on
fresh copies. The rate is an argument, so that a schedule or a method can set it. Update rules
follow torch.optim (Kingma & Ba for Adam and Adamax, Reddi et al. for AMSGrad) and, for Yogi,
Zaheer et al. 2018 with the bias correction of Adam; L2 weight decay adds w * weight_decay to
the gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from fedsieve.core.message import Mask, Params
from fedsieve.core.options import in_range

Moments: TypeAlias = dict[str, Tensor]  # "slot/name" -> tensor, and "step"
Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]
Slots: TypeAlias = Sequence[Tensors]  # for each slot, one tensor per parameter


class Stepper(Protocol):
    """What moves tensors along their gradients; see `Optimiser` for those a user may choose."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its moments."""

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        """Step number t, in place."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with optional heavy-ball momentum."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def __post_init__(self) -> None:
        in_range("sgd: momentum", self.momentum, 0, 1)
        in_range("sgd: weight_decay", self.weight_decay, 0)

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        grads = _decayed(params, grads, self.weight_decay)
        if self.momentum:
            torch._foreach_mul_(slots[0], self.momentum)
            torch._foreach_add_(slots[0], grads)
            grads = slots[0]
        torch._foreach_add_(params, grads, alpha=-lr)


@dataclass(frozen=True)
class Adam:
    """Adam; `amsgrad` keeps the largest second moment seen."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first", "second", "largest") if self.amsgrad else ("first", "second")

    def __post_init__(self) -> None:
        _check("adam", self)

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        torch._fused_adam_(
            params,
            _laid_like(params, grads),
            slots[0],
            slots[1],
            slots[2] if self.amsgrad else (),
            [torch.tensor(float(t))] * len(params),
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=self.amsgrad,
            maximize=False,
        )


@dataclass(frozen=True)
class Adamax:
    """Adam with the infinity norm."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first", "largest")

    def __post_init__(self) -> None:
        _check("adamax", self)

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        grads = _decayed(params, grads, self.weight_decay)
        first, largest = slots
        torch._foreach_lerp_(first, grads, 1 - self.beta1)
        torch._foreach_mul_(largest, self.beta2)
        torch._foreach_maximum_(largest, torch._foreach_add(torch._foreach_abs(grads), self.eps))
        torch._foreach_addcdiv_(params, first, largest, -lr / (1 - self.beta1**t))


@dataclass(frozen=True)
class Adagrad:
    """Adagrad: rates fall with the sum of squared gradients, started at `initial`."""

    eps: float = 1e-10
    initial: float = 0.0
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("second",)

    def __post_init__(self) -> None:
        in_range("adagrad: eps", self.eps, 0)
        in_range("adagrad: initial", self.initial, 0)
        in_range("adagrad: weight_decay", self.weight_decay, 0)

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        grads = _decayed(params, grads, self.weight_decay)
        if t == 1 and self.initial:
            torch._foreach_add_(slots[0], self.initial)
        torch._foreach_addcmul_(slots[0], grads, grads, 1.0)
        _adaptive(params, grads, slots[0], lr, 1.0, self.eps)


@dataclass(frozen=True)
class Yogi:
    """Yogi: the second moment moves by a bounded step towards the squared gradient."""

    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first", "second")

    def __post_init__(self) -> None:
        _check("yogi", self)

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        grads = _decayed(params, grads, self.weight_decay)
        first, second = slots
        torch._foreach_lerp_(first, grads, 1 - self.beta1)
        for v, g in zip(second, grads, strict=True):
            square = g * g
            v.addcmul_(square, torch.sign(v - square), value=-(1 - self.beta2))
        _adaptive(params, first, second, lr / (1 - self.beta1**t), 1 - self.beta2**t, self.eps)


Optimiser: TypeAlias = SGD | Adam | Adamax | Adagrad | Yogi


@dataclass(frozen=True)
class DualAscent:
    """Gradient ascent on the multipliers of constraints gap <= 0, whose gradients are the gaps.

    A multiplier is 0 again as soon as its constraint holds (restarts, Gallego-Posada et al. 2022).
    """

    @property
    def slots(self) -> tuple[str, ...]:
        return ()

    def step(self, params: Tensors, grads: Tensors, slots: Slots, t: int, lr: float) -> None:
        for multiplier, gap in zip(params, grads, strict=True):
            multiplier.copy_(ascend(multiplier, gap, lr))


def ascend(multiplier: Tensor, gap: Tensor, lr: float) -> Tensor:
    """The multiplier of the constraint gap <= 0 after one step of dual ascent with restarts."""
    return torch.where(gap > 0, multiplier + lr * gap, 0)


def undecayed(optimiser: Optimiser) -> Optimiser:
    """The same optimiser without weight decay, for parameters that are not weights."""
    return optimiser if isinstance(optimiser, Yogi) else replace(optimiser, weight_decay=0.0)


def init_moments(optimiser: Stepper, params: Params) -> Moments:
    """Zero moments for every tensor, and the count of steps done."""
    slots = {f"{s}/{n}": torch.zeros_like(p) for s in optimiser.slots for n, p in params.items()}
    return {"step": torch.zeros((), dtype=torch.int64)} | slots


def update(
    optimiser: Stepper,
    params: Params,
    grads: Params,
    moments: Moments,
    lr: float,
    present: Mask | None = None,
) -> tuple[Params, Moments]:
    """One pure step: new parameters and moments, inputs untouched.

    Where a gradient is not `present`, the parameter stays as it is and its moments become 0.
    """
    layout = torch.contiguous_format
    fresh = {name: value.clone(memory_format=layout) for name, value in params.items()}
    after = {slot: value.clone(memory_format=layout) for slot, value in moments.items()}
    after["step"] += 1
    slots = [[after[f"{slot}/{name}"] for name in fresh] for slot in optimiser.slots]
    gradients = [grads[name] for name in fresh]
    optimiser.step(list(fresh.values()), gradients, slots, int(after["step"]), lr)
    for name, is_present in (present or {}).items():
        if name in fresh and not is_present.numpy().all():
            fresh[name] = fresh[name].where(is_present, params[name])
            for slot in optimiser.slots:
                after[f"{slot}/{name}"].mul_(is_present)
    return fresh, after


def _laid_like(params: Tensors, grads: Tensors) -> Tensors:
    """The gradients in the memory order of their parameters, which fused steps take for granted."""
    pairs = zip(params, grads, strict=True)
    return [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for p, g in pairs]


def _decayed(params: Tensors, grads: Tensors, weight_decay: float) -> Tensors:
    return torch._foreach_add(grads, params, alpha=weight_decay) if weight_decay else grads


def _adaptive(
    params: Tensors,
    direction: Tensors,
    second: Tensors,
    lr: float,
    correction: float,
    eps: float,
) -> None:
    """Params -= lr * direction / (sqrt(second / correction) + eps)."""
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, math.sqrt(correction))
    torch._foreach_add_(scale, eps)
    torch._foreach_addcdiv_(params, direction, scale, -lr)


def _check(name: str, it: Adam | Adamax | Yogi) -> None:
    in_range(f"{name}: beta1", it.beta1, 0, 1, below=True)
    in_range(f"{name}: beta2", it.beta2, 0, 1, below=True)
    in_range(f"{name}: eps", it.eps, 0)
    in_range(f"{name}: weight_decay", it.weight_decay, 0)
