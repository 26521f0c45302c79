"""Whole multiples of a power of two, exactly: differences between versions of a broadcast.

Rule     A server that sends versions v_0, v_1, ... rounds what is new to a lattice,
             v_t = v_{t-1} + 2^e round((w_t - v_{t-1}) / 2^e),  2^e near `step` rms(w_t - v_{t-1}).
         v_0 is on the finest lattice: both ends make it from the seed, and it is never sent.
         What rounding takes stays in w_t - v_t and is sent later. The difference of any two
         versions is then a whole multiple of the smallest 2^e between them: a client that missed
         some gets one such difference, and holds the very same v_t as all others. Weights that were
         pruned and come back start from 0, whatever steps they were made of before: few, and sent
         as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.keys import Key
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader, place_bytes, runs_of
from fedsieve.wire.compressors.base import Floats, read_floats, rms
from fedsieve.wire.integers import Numbers, decode_integers, encode_integers
from fedsieve.wire.precision import decode_floats, encode_floats

_EXACT, _NUMBERS = 0, 1
_MIDDLE = 150  # bytes 0 to 255 stand for 2^-150 to 2^105
_OTHER_BITS = 44  # of a value off the lattice, with its place
_LARGEST = 2.0**23  # multiples that float32 still tells apart
_FINEST = 2.0**-17  # of the largest value: weights may grow 128-fold and stay exact in float32


@dataclass(frozen=True)
class Lattice:
    """Multiples of a power of two for each tensor; broadcasts are rounded to them."""

    step: float = option(1.0, "of the root mean square of what is new in a tensor")

    def __post_init__(self) -> None:
        in_range("lattice: step", self.step, 0, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        head, numbers, others = bytearray(), list[Numbers](), list[Floats]()
        for array in arrays:
            exponent, places = _split(array)
            scaled = np.ldexp(array, -exponent)
            scaled[places] = 0
            if np.abs(scaled).max(initial=0) > _LARGEST:
                return [bytes([_EXACT]), *encode_floats(list(arrays), "fp32", key)]
            numbers.append(scaled.astype(np.int32))
            others.append(array[places])
            head += bytes([min(max(exponent + _MIDDLE, 0), 255)]) + place_bytes(places)
        raw = np.concatenate(others).astype("<f4").tobytes() if others else b""
        return [bytes([_NUMBERS]), bytes(head), raw, *encode_integers(numbers)]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        tag = reader.byte()
        if tag == _EXACT:
            flat = decode_floats(reader.rest(), sum(sizes), "fp32")
            return runs_of(flat, sizes)
        if tag != _NUMBERS:
            raise reader.error(f"lattice: {_EXACT} or {_NUMBERS} expected, found {tag}.")
        exponents, places = list[int](), list[list[int]]()
        for size in sizes:
            exponents.append(reader.byte() - _MIDDLE)
            places.append(reader.places(size))
        others = [read_floats(reader, len(some)) for some in places]
        arrays = []
        numbers = decode_integers(reader, sizes)
        for number, exponent, where, values in zip(numbers, exponents, places, others, strict=True):
            array = np.ldexp(number.astype(np.float32), exponent)
            array[where] = values
            arrays.append(array)
        return arrays

    def rounded(self, new: Floats, before: Floats | None) -> Floats:
        """The version of `new` that follows `before`."""
        change = new if before is None else new - before
        moved = change[change != 0]
        size = rms(moved) * self.step
        if not size or not math.isfinite(size):
            return new if before is None else before + change * np.float32(0)
        largest = max(float(np.abs(new).max()), float(np.abs(change).max()))
        exponent = math.ceil(math.log2(largest * _FINEST))
        if before is not None:
            exponent = max(exponent, round(math.log2(size)))
        whole = np.ldexp(np.rint(np.ldexp(change, -exponent)), exponent)
        return whole if before is None else before + whole


def _split(array: Floats) -> tuple[int, NDArray[np.intp]]:
    """The exponent of the lattice that nearly all values are on, and the places of the others."""
    places = np.flatnonzero(array)
    if not places.size:
        return 0, places
    mantissa, exponents = np.frexp(array[places])
    whole = np.ldexp(mantissa, 24).astype(np.int32)
    lowest = (whole & -whole).astype(np.float32)  # 0 where a value is not finite
    last = exponents - 24 + np.frexp(lowest)[1] - 1
    tried, counts = np.unique(last, return_counts=True)
    below = np.cumsum(counts) - counts
    exponent = int(tried[np.argmin(_OTHER_BITS * below - array.size * (tried - tried[0]))])
    return exponent, places[last < exponent]
