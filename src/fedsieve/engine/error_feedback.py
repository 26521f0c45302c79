"""Error feedback: what compression takes from a message reaches the server later.

The residual of a client is what its messages meant and did not bring, a tensor for every path
`field/name`. With a decay it has also the number of its round, by which its age is told.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.message import Kept, Params, Whole, fields
from fedsieve.wire.feedback import Ahead, Remembered
from fedsieve.wire.versions import base_of

ROUND = "round"


class Parts(NamedTuple):
    """A residual in two parts that are added to a client's work."""

    before: Params  # to the broadcast that it trains from
    after: Params  # to its message


def add_residual(message: Any, residual: Params) -> Any:
    """The message with the residual of the last one added; shapes that changed start afresh."""
    values = message._asdict()
    for field in _rounded(type(message)):
        values[field] = {
            name: tensor + residual[path]
            if (path := f"{field}/{name}") in residual and residual[path].shape == tensor.shape
            else tensor
            for name, tensor in values[field].items()
        }
    return type(message)(**values)


def residual_of(message: Any, arrived: Any) -> Params:
    """Meant minus arrived, for every value that was sent; values a mask dropped leave nothing."""
    residual: dict[str, Tensor] = {}
    for name, role in _rounded(type(message)).items():
        mask = getattr(message, role.where) if isinstance(role, Kept) else {}
        for key, tensor in getattr(message, name).items():
            if tensor.dtype == torch.float32:  # others are never rounded
                lost = tensor - getattr(arrived, name)[key]
                residual[f"{name}/{key}"] = lost.where(mask[key], 0) if key in mask else lost
    return residual


def aged(residual: Params, decay: float, number: int) -> Params:
    """The residual as it counts in round `number`: less for every round since it was left."""
    if ROUND not in residual:
        return residual
    factor = decay ** (number - int(residual[ROUND]))
    return {path: factor * lost for path, lost in residual.items() if path != ROUND}


def dated(residual: Params, decay: float, number: int) -> Params:
    """The residual with its round, if that matters."""
    return residual | {ROUND: torch.tensor(number)} if residual and decay < 1 else residual


def divided(residual: Params, how: Remembered, down: Any, up_kind: type) -> Parts:
    """The residual in two: a share before training, of fields that both messages have as values."""
    if not isinstance(how, Ahead) or how.share == 0 or not down:
        return Parts({}, residual)
    before: dict[str, Tensor] = {}
    replied, asked = _rounded(up_kind), _rounded(type(down))
    for name in (name for name, role in replied.items() if name in asked and not role.is_change):
        role, values = asked[name], getattr(down, name)
        mask = getattr(down, role.where) if isinstance(role, Kept) else {}
        for key, tensor in values.items():
            lost = residual.get(path := f"{name}/{key}")
            if lost is not None and lost.shape == tensor.shape:
                part = how.share * lost
                before[path] = part.where(mask[key], 0) if key in mask else part
    after = {path: lost - before[path] for path, lost in residual.items() if path in before}
    return Parts(before, residual | after)


def masked_out(up: Any, residual: Params, answered: Any) -> Params:
    """What a mask left out of a message: the residual so far, and by how much it changes values.

    A value of exactly 0 outside the mask is what the method means: nothing is missing.
    """
    missing: dict[str, Tensor] = {}
    for name, role in _rounded(type(up)).items():
        mask = getattr(up, role.where) if isinstance(role, Kept) else {}
        base = base_of(name, role, answered)
        for key, tensor in getattr(up, name).items():
            if key not in mask or tensor.dtype != torch.float32:
                continue
            before = base.get(key, torch.zeros_like(tensor) if role.is_change else tensor)
            change = tensor - before if before.shape == tensor.shape else torch.zeros_like(tensor)
            lost = residual.get(path := f"{name}/{key}", tensor.new_zeros(()))
            lost = lost if lost.shape in {(), tensor.shape} else tensor.new_zeros(())
            missing[path] = (change.where(tensor != 0, 0) + lost).where(~mask[key], 0)
    return missing


def _rounded(kind: type) -> dict[str, Whole | Kept]:
    """Fields whose values may be rounded, with their roles."""
    return {
        name: role
        for name, role in fields(kind)
        if isinstance(role, Kept) or (isinstance(role, Whole) and not role.exact)
    }
