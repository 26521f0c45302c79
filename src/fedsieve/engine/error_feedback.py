"""Error feedback: what rounding takes from a message is added to the client's next one."""

from typing import Any

import torch
from torch import Tensor

from fedsieve.core.message import Kept, Params, Whole, fields


def add_residual(message: Any, residual: Params) -> Any:
    """The message with the residual of the last one added; shapes that changed start afresh."""
    values = message._asdict()
    for field in _rounded(message):
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
    for name, role in fields(type(message)):
        if name not in _rounded(message):
            continue
        mask = getattr(message, role.where) if isinstance(role, Kept) else {}
        for key, tensor in getattr(message, name).items():
            if tensor.dtype == torch.float32:  # others are never rounded
                lost = tensor - getattr(arrived, name)[key]
                residual[f"{name}/{key}"] = lost.where(mask[key], 0) if key in mask else lost
    return residual


def _rounded(message: Any) -> list[str]:
    """Fields whose values may be rounded."""
    return [
        name
        for name, role in fields(type(message))
        if isinstance(role, Kept) or (isinstance(role, Whole) and not role.exact)
    ]
