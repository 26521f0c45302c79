"""The one local loop over mini-batches. Pure from outside: it works on its own copy."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Params
from fedsieve.core.method import Batch, Batches, Task
from fedsieve.optim.optimisers import Moments, Stepper, Tensors, init_moments

T = TypeVar("T")
_ONE = torch.ones(())  # the gradient of a loss by itself; torch would make it anew in every step


class Trained(NamedTuple, Generic[T]):
    """What local training leaves: parameters, moments, mean loss, examples and steps done."""

    params: T
    moments: tuple[Moments, ...]
    loss: float
    processed: int
    steps: int


class Group(NamedTuple):
    """Tensors that one optimiser moves; none of them without an optimiser."""

    optimiser: Stepper | None
    lr: float
    clip_norm: float | None
    moments: Moments
    done: int  # steps before this call
    params: list[Tensor]
    slots: list[list[Tensor]]


def train(
    objective: Callable[[T, Batch, Key], Tensor],
    start: T,
    batches: Iterable[Batch],
    optimiser: Stepper | Sequence[Stepper | None],
    *,
    lr: float | Sequence[float],
    key: Key,
    fixed: frozenset[str] = frozenset(),
    moments: tuple[Moments, ...] = (),
    clip_norm: float | Sequence[float | None] | None = None,
    project: Callable[[T], T] | None = None,
) -> Trained[T]:
    """Descend `objective(params, batch, key)` over the batches from `start`.

    Args:
        objective: loss to minimise; it gets a key of its own at every step.
        start: a dict of tensors, or a NamedTuple of such dicts.
        batches: the mini-batches, each used once.
        optimiser: one for all tensors, or one for each field of `start`; None leaves a field still.
        lr: learning rate, or one for each field.
        key: address of this call's randomness.
        fixed: names of tensors without gradient (statistics of normalisation layers).
        moments: what an earlier call returned, to go on with its momentum; {} starts a field anew.
        clip_norm: largest allowed norm of the whole gradient, or of that of each field.
        project: maps the parameters back into the feasible set after every step.
    """
    working = tree.map_leaves(_working_copy, start)
    groups = _groups(working, optimiser, lr, clip_norm, fixed, moments)
    moving = tuple(p.requires_grad_() for group in groups for p in group.params)
    losses, processed = [], 0
    for step, batch in enumerate(batches, 1):
        loss = objective(working, batch, fold(key, step))
        grads = _gradient(loss, moving)
        with torch.no_grad():
            if isinstance(clip_norm, float | int):
                grads = _clipped(grads, clip_norm)
            at = 0
            for opt, rate, limit, _, done, params, slots in groups:
                if opt is not None and params:
                    part, at = grads[at : at + len(params)], at + len(params)
                    part = part if limit is None else _clipped(part, limit)
                    opt.step(params, part, slots, done + step, rate)
            if project is not None:
                tree.map_leaves(lambda old, new: old.copy_(new), working, project(working))
        losses.append(loss.detach())
        processed += batch.y.shape[0]
    for group in groups:
        if group.optimiser is not None:
            group.moments["step"] += len(losses)
    return Trained(
        params=tree.map_leaves(lambda p: p.detach().contiguous(), working),
        moments=tuple(group.moments for group in groups),
        loss=sum(loss.item() for loss in losses) / max(len(losses), 1),
        processed=processed,
        steps=len(losses),
    )


def score(task: Task, params: Params, data: Batches) -> float:
    """The task's figure of merit of a model on a client's data."""
    with torch.no_grad():
        tallies = [task.tally(task.predict(params, x), y) for x, y in data.ordered()]
    return task.score(torch.stack(tallies).sum(0))


def gradient(
    objective: Callable[[T, Batch, Key], Tensor],
    at: T,
    batch: Batch,
    *,
    key: Key,
    fixed: frozenset[str] = frozenset(),
) -> tuple[T, float]:
    """The gradient of `objective(params, batch, key)` with respect to `at`, and the loss.

    Tensors named in `fixed` get their change by the forward pass instead, old - new: a step of rate
    1 along it makes them what they have become.
    """
    copy = tree.map_leaves(_working_copy, at)
    moving = _moving(copy, fixed)
    for tensor in moving.values():
        tensor.requires_grad_()
    loss = objective(copy, batch, key)
    gradients = dict(zip(moving, _gradient(loss, tuple(moving.values())), strict=True))
    paths = iter(tree.flatten(copy))

    def part(new: Tensor, old: Tensor) -> Tensor:
        path = next(paths)
        return (gradients[path] if path in gradients else old - new).contiguous()

    return tree.map_leaves(part, copy, at), loss.item()


def _gradient(loss: Tensor, moving: tuple[Tensor, ...]) -> Tensors:
    """The gradient of each tensor; 0 where the loss does not depend on it.

    As `torch.autograd.grad` without its checks, which are a quarter of a small model's step.
    """
    keep_graph = create_graph = False
    grads = _engine_run_backward(
        (loss,),
        (_ONE,),
        keep_graph,
        create_graph,
        moving,
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return [torch.zeros_like(p) if g is None else g for p, g in zip(moving, grads, strict=True)]


def layout(value: Tensor) -> torch.memory_format:
    """The layout in which layers work fastest on CPUs: channels-last for convolution kernels."""
    return torch.channels_last if value.dim() == 4 else torch.contiguous_format


def _working_copy(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=layout(value))


def _groups(
    params: Any,
    optimiser: Stepper | Sequence[Stepper | None],
    lr: float | Sequence[float],
    clip_norm: float | Sequence[float | None] | None,
    fixed: frozenset[str],
    moments: tuple[Moments, ...],
) -> list[Group]:
    several = isinstance(optimiser, Sequence)
    parts = list(params) if several else [params]
    optimisers = list(optimiser) if isinstance(optimiser, Sequence) else [optimiser]
    rates = list(lr) if isinstance(lr, Sequence) else [lr] * len(parts)
    limits = list(clip_norm) if isinstance(clip_norm, Sequence) else [None] * len(parts)
    columns = zip(parts, optimisers, rates, limits, strict=True)
    groups = []
    for index, (part, opt, rate, limit) in enumerate(columns):
        moving = _moving(part, fixed)
        before = moments[index] if moments else {}
        if opt is None:
            groups.append(Group(None, rate, None, before, 0, [], []))
            continue
        before = before or init_moments(opt, moving)
        held = tree.map_leaves(_working_copy, before)
        slots = [[held[f"{slot}/{path}"] for path in moving] for slot in opt.slots]
        groups.append(
            Group(opt, rate, limit, held, int(held["step"]), list(moving.values()), slots)
        )
    return groups


def _moving(part: Any, fixed: frozenset[str]) -> dict[str, Tensor]:
    """The tensors that get a gradient, by path."""
    return {
        path: leaf
        for path, leaf in tree.flatten(part).items()
        if isinstance(leaf, Tensor) and path.split("/")[-1] not in fixed
    }


def _clipped(grads: Tensors, limit: float) -> Tensors:
    norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(grads))))
    return torch._foreach_mul(grads, torch.clamp(limit / (norm + 1e-6), max=1.0))
