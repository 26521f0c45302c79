"""Whole multiples of a power of two, exactly: differences between versions of a broadcast.

Rule     A server that sends versions v_0, v_1, ... rounds what is new to a lattice,
             v_t = v_{t-1} + 2^e round((w_t - v_{t-1}) / 2^e),  2^e near `step` rms(w_t - v_{t-1}),
         and e never grows. What rounding takes stays in w_t - v_t and is sent later. The difference
         of any two versions is then a whole multiple of the last 2^e: a client that missed some
         gets one such difference, and holds the very same v_t as all others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsieve.core.keys import Key
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader
from fedsieve.wire.compressors.base import Floats, rms
from fedsieve.wire.integers import decode_integers, encode_integers
from fedsieve.wire.precision import decode_floats, encode_floats

_EXACT, _NUMBERS = 0, 1
_MIDDLE = 150  # exponents 1 to 255 stand for 2^-149 to 2^105; 0 for an array that is all 0
_LARGEST = 2.0**23  # multiples that float32 still tells apart
_FIRST = 2.0**-5  # of the root mean square of a first version


@dataclass(frozen=True)
class Lattice:
    """Multiples of a power of two for each tensor; broadcasts are rounded to them."""

    step: float = option(1.0, "of the root mean square of what is new in a tensor")

    def __post_init__(self) -> None:
        in_range("lattice: step", self.step, 0, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        exponents = [exponent_of(array) for array in arrays]
        scaled = [
            np.ldexp(a, -e) if e is not None else a for a, e in zip(arrays, exponents, strict=True)
        ]
        if not all(np.abs(s).max(initial=0) <= _LARGEST for s in scaled):
            return [bytes([_EXACT]), *encode_floats(list(arrays), "fp32", key)]
        head = bytes(0 if e is None else min(max(e + _MIDDLE, 1), 255) for e in exponents)
        numbers = [s.astype(np.int32) for s in scaled]
        return [bytes([_NUMBERS]), head, *encode_integers(numbers)]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        tag = reader.byte()
        if tag == _EXACT:
            flat = decode_floats(reader.rest(), sum(sizes), "fp32")
            return np.split(flat, np.cumsum(sizes)[:-1])
        if tag != _NUMBERS:
            raise reader.error(f"lattice: {_EXACT} or {_NUMBERS} expected, found {tag}.")
        exponents = bytes(reader.take(len(sizes)))
        numbers = decode_integers(reader, sizes)
        return [
            np.ldexp(n.astype(np.float32), e - _MIDDLE)
            for n, e in zip(numbers, exponents, strict=True)
        ]

    def rounded(self, new: Floats, before: Floats | None) -> Floats:
        """The version of `new` that follows `before`."""
        change = new if before is None else new - before
        moved = change[change != 0]
        size = rms(moved) * (_FIRST if before is None else self.step)
        if not size or not math.isfinite(size):
            return new if before is None else before + change * np.float32(0)
        wanted = round(math.log2(size))
        last = None if before is None else exponent_of(before)
        exponent = wanted if last is None else min(wanted, last)
        largest = max(float(np.abs(new).max()), float(np.abs(change).max()))
        exponent = max(exponent, math.ceil(math.log2(largest / _LARGEST)))
        whole = np.ldexp(np.rint(np.ldexp(change, -exponent)), exponent)
        return whole if before is None else before + whole


def exponent_of(array: Floats) -> int | None:
    """The largest e for which all values are whole multiples of 2^e; None if all are 0."""
    values = array[array != 0]
    if not values.size or not np.isfinite(values).all():
        return None if not values.size else -149
    mantissa, exponents = np.frexp(values)
    whole = np.ldexp(mantissa, 24).astype(np.int32)
    lowest = (whole & -whole).astype(np.float32)
    return int((exponents - 24 + np.frexp(lowest)[1] - 1).min())
