"""A reply as an update: by how much a client moved what it was sent, and that norm bounded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsieve.core.errors import ConfigError
from fedsieve.core.message import Kept, Mask, Whole, fields
from fedsieve.core.options import in_range, read


@dataclass(frozen=True)
class Fixed:
    """No update is longer than `norm`."""

    norm: float

    def __post_init__(self) -> None:
        in_range("clip_update: norm", self.norm, 0, above=True)

    def bound(self, norms: Sequence[float]) -> float:
        return self.norm


@dataclass(frozen=True)
class MedianNorm:
    """No update is longer than `times` the median of the round's norms."""

    times: float = 3.0

    def __post_init__(self) -> None:
        in_range("clip_update: times", self.times, 0, above=True)

    def bound(self, norms: Sequence[float]) -> float:
        return self.times * median(norms)


Clip: TypeAlias = Fixed | MedianNorm


_CLIPS: tuple[type[Clip], ...] = (Fixed, MedianNorm)


def read_clip(text: str) -> Clip:
    """`10`, `fixed(10)` or `median_norm(3)`."""
    try:
        return Fixed(float(text))
    except ConfigError:
        raise
    except ValueError:
        return read(text, _CLIPS, "clip_update")


class Entry(NamedTuple):
    """One tensor of a reply that the client has moved."""

    field: str
    name: str
    value: Tensor
    start: Tensor | None  # what it was sent; None: the value is the change itself
    sent: Tensor | None  # entries that travelled; None: all

    @property
    def change(self) -> Tensor:
        """0 where nothing was sent."""
        moved = self.value if self.start is None else self.value - self.start
        return moved if self.sent is None else moved * self.sent


def has_updates(up: type, down: type) -> bool:
    """Whether replies of class `up` say how far a client has moved from its broadcast."""
    known = {f.name for f in fields(down)}
    return any(
        isinstance(role, Whole | Kept) and (role.is_change or name in known)
        for name, role in fields(up)
    )


def entries(up: Any, down: Any) -> Iterator[Entry]:
    """The tensors of a reply that answer one of the broadcast, or are changes themselves."""
    for field, role in fields(type(up)):
        if not isinstance(role, Whole | Kept):
            continue
        starts = {} if role.is_change else getattr(down, field, {})
        mask: Mask = getattr(up, role.where) if isinstance(role, Kept) else {}
        for name, value in getattr(up, field).items():
            start = starts.get(name)
            if role.is_change or (start is not None and start.shape == value.shape):
                sent = mask[name].expand_as(value) if name in mask else None
                yield Entry(field, name, value, start, sent)


def norm(up: Any, down: Any) -> float:
    """The Euclidean norm of a reply's update."""
    parts = [torch.linalg.vector_norm(x.change.double()) for x in entries(up, down)]
    return float(torch.stack(parts).norm()) if parts else 0.0


def moved(up: Any, down: Any, change: Callable[[Entry], Tensor]) -> Any:
    """The reply with other changes of its tensors."""
    changed: dict[str, dict[str, Tensor]] = {}
    for x in entries(up, down):
        value = change(x) if x.start is None else x.start + change(x)
        changed.setdefault(x.field, {})[x.name] = value if x.sent is None else value * x.sent
    return up._replace(**{f: getattr(up, f) | tensors for f, tensors in changed.items()})


def scaled(up: Any, down: Any, factor: float) -> Any:
    """The reply with its update times `factor`."""
    return moved(up, down, lambda x: x.change * factor)


def clipped(clip: Clip, ups: Sequence[Any], downs: Sequence[Any]) -> list[Any]:
    """Replies to these broadcasts, each update scaled down to the bound where it is longer."""
    norms = [norm(up, down) for up, down in zip(ups, downs, strict=True)]
    bound = clip.bound(norms)
    return [
        scaled(up, down, bound / length) if length > bound else up
        for up, down, length in zip(ups, downs, norms, strict=True)
    ]
