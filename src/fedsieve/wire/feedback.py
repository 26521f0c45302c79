"""What clients do about what compression loses: the choices of `error_feedback`.

A setting as text, `ahead(share=0.5)`; `true` stands for `classic`, `false` for `none`. The rules
are in `engine/error_feedback`; nothing here needs torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args

from fedsieve.core.options import in_range, option, read, spell


@dataclass(frozen=True)
class Classic:
    """What a message lost is added to the client's next one."""

    decay: float = option(1.0, "factor on what is remembered, for every round since")
    masked: bool = option(False, "changes that the method's mask left out are remembered too")

    def __post_init__(self) -> None:
        in_range("classic: decay", self.decay, 0, 1, above=True)


@dataclass(frozen=True)
class Ef21:
    """Both ends hold the client's last change as it arrived; the difference to it is sent."""


@dataclass(frozen=True)
class Ahead:
    """Training starts with a share of what was lost; the rest is added to the message."""

    share: float = option(0.5, "of what was lost, added before training")
    decay: float = option(1.0, "as of classic")
    masked: bool = option(False, "as of classic")

    def __post_init__(self) -> None:
        in_range("ahead: share", self.share, 0, 1)
        in_range("ahead: decay", self.decay, 0, 1, above=True)


Remembered: TypeAlias = Classic | Ahead  # they keep a residual
Feedback: TypeAlias = Classic | Ef21 | Ahead
KINDS: Final = get_args(Feedback)
NONE: Final = "none"


def read_feedback(value: bool | str | None) -> Feedback | None:  # noqa: FBT001 - as settings have it
    """The choice that a setting names; None for no error feedback."""
    if value is None or value is False or value == NONE:
        return None
    return Classic() if value is True else read(value, KINDS, "error_feedback")


def canonical(value: bool | str | None, spelled: Callable[[Any], Any] = spell) -> bool | str:  # noqa: FBT001
    """A setting as it was written when it was true or false, or spelled out."""
    kind = read_feedback(value)
    return kind is not None if kind in {None, Classic()} else str(spelled(kind))
