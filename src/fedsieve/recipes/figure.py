"""Figures that follow from a formula alone: what a paper prints beside what its formula gives."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Literal, NamedTuple

Agreement = Literal["exact", "consistent", "differs", "unexplained", "not printed"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One recomputed figure.

    Attributes:
        ours: what the formula gives, in `unit`.
        printed: the paper's figure with the digits it prints; None where it prints none.
        between: what the formula can give, where one of its inputs is known only as a range.
        note: the reason for a difference, or what else is known.
        is_explained: False where the note describes a difference but nobody knows its reason.
    """

    label: str
    formula: str
    unit: str
    ours: Decimal
    source: str
    printed: str | None = None
    between: tuple[Decimal, Decimal] | None = None
    note: str = ""
    is_explained: bool = True


class FigureVerdict(NamedTuple):
    """How a recomputed figure compares with the printed one."""

    agreement: Agreement
    text: str


@dataclass(frozen=True, kw_only=True)
class Calculated:
    """A recipe without training; `figures` builds models when called, so `count` says how many."""

    name: str
    title: str
    source: str
    count: int
    figures: Callable[[], tuple[Figure, ...]]


def judge(figure: Figure) -> FigureVerdict:
    """Compare to the printed digits; a paper may have rounded its figure or cut it off.

    With an input known only as a range, agreement to the last digit would be luck: it is enough,
    and called consistent, that the range holds the printed figure.
    """
    if figure.printed is None:
        return FigureVerdict("not printed", figure.note or "only the formula is printed")
    printed = Decimal(figure.printed)
    note = f"; {figure.note}" if figure.note else ""
    if figure.between is not None:
        if figure.between[0] <= printed <= figure.between[1]:
            return FigureVerdict("consistent", f"consistent{note}")
    elif printed == shown(figure.ours, printed, ROUND_HALF_UP):
        return FigureVerdict("exact", f"exact{note}")
    elif printed == shown(figure.ours, printed, ROUND_DOWN):
        return FigureVerdict("exact", f"exact, further digits cut off{note}")
    off = (printed - figure.ours) / figure.ours * 100
    is_explained = figure.is_explained and bool(note)
    return FigureVerdict(
        "differs" if is_explained else "unexplained",
        f"printed {off:+.1f} %{note}{'' if is_explained else '; UNEXPLAINED'}",
    )


def shown(value: Decimal, like: Decimal, rounding: str) -> Decimal:
    """`value` with as many digits as `like`."""
    return value.quantize(Decimal(1).scaleb(int(like.as_tuple().exponent)), rounding)
