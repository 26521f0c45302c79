"""Roles of message fields: a message says what is sent, `wire` decides how.

A message is a NamedTuple whose fields are annotated with a role:

    class Up(NamedTuple):
        mask: Bits                                        # one bit per coordinate
        weights: Annotated[Params, Kept(where="mask")]    # values where the mask is True
        examples: Examples                                # how many the client trains on

Tensors that the mask does not name are sent whole. A mask may have length 1 along an axis, where
one bit then stands for all coordinates: a filter, or an input feature.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
Mask: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Whole:
    """Every value of every tensor travels; `exact` ones are never rounded.

    Values are those of the model, or (`is_change`) by how much a client has moved them.
    """

    exact: bool = False
    is_change: bool = False


@dataclass(frozen=True)
class Kept:
    """Only values where the message's field `where` is True travel; the others are 0."""

    where: str
    is_change: bool = False  # as in Whole


@dataclass(frozen=True)
class Bit:
    """Boolean tensors, one bit per coordinate before coding.

    In a reply, `given` may name a field of the broadcast that it answers, with a tensor for each of
    these: how likely every bit is to be True. Bits that follow it cost less.
    """

    given: str | None = None


@dataclass(frozen=True)
class Drawn:
    """Probabilities, in place of which boolean tensors arrive: bits that are 1 so often.

    In a reply; `given` names a field of the broadcast that it answers, with a tensor for each of
    these: other probabilities of the same bits. The nearer these are, the fewer bits are sent.
    """

    given: str


@dataclass(frozen=True)
class Number:
    """A single float (8 bytes)."""


@dataclass(frozen=True)
class Natural:
    """A single whole number >= 0 (one byte per seven bits).

    Attributes:
        is_sender: it is the number of the client that sends it; others are refused.
        is_examples: it is how many training examples the client holds; others are refused.
    """

    is_sender: bool = False
    is_examples: bool = False


Role: TypeAlias = Whole | Kept | Bit | Drawn | Number | Natural
Dense: TypeAlias = Annotated[Params, Whole()]
Change: TypeAlias = Annotated[Params, Whole(is_change=True)]
Exact: TypeAlias = Annotated[Params, Whole(exact=True)]
Bits: TypeAlias = Annotated[Mask, Bit()]
Scalar: TypeAlias = Annotated[float, Number()]
Count: TypeAlias = Annotated[int, Natural()]
Sender: TypeAlias = Annotated[int, Natural(is_sender=True)]
Examples: TypeAlias = Annotated[int, Natural(is_examples=True)]


class Field(NamedTuple):
    name: str
    role: Role


def fields(message: type[Any]) -> tuple[Field, ...]:
    """The fields of a message class with their roles, in order.

    Raises:
        TypeError: a field has no role, or `Kept` points at a field that is not `Bits`.
    """
    if message not in _fields:
        _fields[message] = _read_fields(message)
    return _fields[message]


_fields: dict[type[Any], tuple[Field, ...]] = {}


def _read_fields(message: type[Any]) -> tuple[Field, ...]:
    hints = get_type_hints(message, include_extras=True)
    declared = tuple(Field(name, _role(message, name, hint)) for name, hint in hints.items())
    masks = {f.name for f in declared if isinstance(f.role, Bit)}
    for field in declared:
        if isinstance(field.role, Kept) and field.role.where not in masks:
            raise TypeError(
                f"{message.__qualname__}.{field.name} is Kept(where={field.role.where!r}), "
                f"but the Bits fields of the message are {sorted(masks)}."
            )
    return declared


def count_nonzero(tensor: Tensor) -> int:
    """How many values are not 0; numpy counts booleans many times faster than torch does."""
    array = tensor.detach().numpy()
    return int(np.count_nonzero(array if array.dtype == np.bool_ else array != 0))


def paper_bytes(message: Any) -> int:
    """The count most papers print: 4 bytes for each value sent, nothing for where it belongs."""
    values = 0
    for name, role in fields(type(message)):
        if isinstance(role, Whole):
            values += sum(tensor.numel() for tensor in getattr(message, name).values())
        elif isinstance(role, Kept):
            mask: Mask = getattr(message, role.where)
            for key, tensor in getattr(message, name).items():
                kept = mask[key].expand_as(tensor) if key in mask else None
                values += tensor.numel() if kept is None else count_nonzero(kept)
    return 4 * values


def _role(message: type, name: str, hint: Any) -> Role:
    for extra in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if isinstance(extra, Role):
            return extra
    raise TypeError(
        f"{message.__qualname__}.{name} has no wire role: annotate it with Dense, Bits, Scalar, "
        "Count, Examples, Sender or Annotated[Params, Kept(where=...)]."
    )
