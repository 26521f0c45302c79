"""What is expected of a figure, and how the one that was found compares with it."""

from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from statistics import mean, stdev
from typing import Literal, TypeAlias

Kind = Literal[
    "within", "off", "not comparable", "no figure", "not run",
    "exact", "consistent", "differs", "unexplained",  # of figures by formula
]  # fmt: skip


@dataclass(frozen=True)
class Within:
    """The mean over seeds lies within `tolerance` of `value`."""

    value: float
    tolerance: float


@dataclass(frozen=True)
class AtLeast:
    """The mean over seeds is `value` or more."""

    value: float


@dataclass(frozen=True)
class AtMost:
    """The mean over seeds is `value` or less."""

    value: float


@dataclass(frozen=True)
class Printed:
    """A formula gives the digits that a paper prints, which may be rounded or cut off.

    Attributes:
        digits: the paper's figure with the digits it prints.
        between: what the formula can give, where one of its inputs is known only as a range.
        note: the reason for a difference, or what else is known.
        is_explained: False where the note describes a difference but nobody knows its reason.
    """

    digits: str
    between: tuple[Decimal, Decimal] | None = None
    note: str = ""
    is_explained: bool = True

    @property
    def value(self) -> float:
        return float(self.digits)


Criterion: TypeAlias = Within | AtLeast | AtMost | Printed


@dataclass(frozen=True)
class Expected:
    """A figure of a row: which one, what it should be, and who says so."""

    metric: str
    bound: Criterion
    source: str


@dataclass(frozen=True)
class Measured:
    """Mean and sample standard deviation over n seeds; no deviation for one."""

    mean: float
    spread: float | None
    n: int


@dataclass(frozen=True)
class Verdict:
    """How a figure compares with what was expected of it."""

    kind: Kind
    text: str


def measured(values: list[float]) -> Measured | None:
    """Mean and spread over seeds, or None without any."""
    if not values:
        return None
    return Measured(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def judge(ours: Measured | None, expected: Expected | None, departure: str = "") -> Verdict:
    """Compare a figure with the expected one, unless settings departed from it."""
    if ours is None:
        return Verdict("not run", "not run")
    if expected is None:
        return Verdict("no figure", "no figure")
    if departure:
        return Verdict("not comparable", f"not comparable: {departure}")
    if isinstance(expected.bound, Printed):
        return _by_digits(ours.mean, expected.bound)
    is_met, text = _compare(ours.mean, expected.bound)
    return Verdict("within" if is_met else "off", text)


def _compare(value: float, bound: Within | AtLeast | AtMost) -> tuple[bool, str]:
    off = value - bound.value
    if isinstance(bound, AtLeast):
        return off >= 0, f"{'at least' if off >= 0 else f'{-off:.4g} below'} {bound.value:g}"
    if isinstance(bound, AtMost):
        return off <= 0, f"{'at most' if off <= 0 else f'{off:.4g} above'} {bound.value:g}"
    if abs(off) <= 1e-9 * abs(bound.value):
        return True, "equal"
    if abs(off) <= bound.tolerance:
        return True, f"within {bound.tolerance:.3g}"
    return False, f"off by {off:+.4g} (tolerance {bound.tolerance:.3g})"


def _by_digits(value: float, bound: Printed) -> Verdict:
    """With an input known only as a range, agreement to the last digit would be luck.

    It is enough then, and called consistent, that the range holds the printed figure.
    """
    ours, printed = Decimal(repr(value)), Decimal(bound.digits)
    digit = Decimal(1).scaleb(int(printed.as_tuple().exponent))
    note = f"; {bound.note}" if bound.note else ""
    if bound.between is not None:
        if bound.between[0] <= printed <= bound.between[1]:
            return Verdict("consistent", f"consistent{note}")
    elif printed == ours.quantize(digit, ROUND_HALF_UP):
        return Verdict("exact", f"exact{note}")
    elif printed == ours.quantize(digit, ROUND_DOWN):
        return Verdict("exact", f"exact, further digits cut off{note}")
    off = f"printed {(printed - ours) / ours * 100:+.1f} %{note}"
    if bound.is_explained and note:
        return Verdict("differs", off)
    return Verdict("unexplained", f"{off}; UNEXPLAINED")
