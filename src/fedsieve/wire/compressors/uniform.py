"""Uniform steps with subtractive dither.

Source   Roberts, "Picture coding using pseudo-random noise", 1962; in federated learning Shlezinger
         et al., "UVeQFed", 2020.
Rule     step = 2^k nearest to (multiple) x (root mean square of the tensor), u uniform in
         [-1/2, 1/2) from the message's key:  q = round(x / step + u),  x' = (q - u) step.
         The error is uniform in +-step/2 and independent of x: unbiased, variance step^2 / 12.
         Without dither q = round(x / step): less error near 0, and biased.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsieve.core import keys
from fedsieve.core.keys import Key
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader
from fedsieve.wire.compressors.base import Floats, rms
from fedsieve.wire.integers import MAX_NUMBER, decode_integers, encode_integers

_ZERO = 0  # exponent of a tensor that is all 0
_MIDDLE = 150  # exponents 1 to 255 stand for 2^-149 to 2^105


@dataclass(frozen=True)
class Uniform:
    """Whole multiples of a step for each tensor, a power of two."""

    step: float = option(1.0, "of the root mean square of a tensor")
    dither: bool = option(True, "draw where steps begin, from the message's key: no bias")

    def __post_init__(self) -> None:
        in_range("uniform: step", self.step, 0, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        exponents = [self._exponent(array) for array in arrays]
        noise = self._noise(arrays, key)
        numbers = []
        for array, exponent, shift in zip(arrays, exponents, noise, strict=True):
            scaled = np.ldexp(array, -exponent + _MIDDLE) if exponent else np.zeros_like(array)
            scaled += shift
            np.rint(scaled, out=scaled)
            numbers.append(np.clip(scaled, -MAX_NUMBER, MAX_NUMBER).astype(np.int32))
        return [bytes(exponents), *encode_integers(numbers)]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        exponents = bytes(reader.take(len(sizes)))
        numbers = decode_integers(reader, sizes)
        empty = [np.empty(size, np.float32) for size in sizes]
        noise = self._noise(empty, key)
        return [
            np.ldexp(number.astype(np.float32) - shift, exponent - _MIDDLE)
            if exponent
            else np.zeros(number.size, np.float32)
            for number, exponent, shift in zip(numbers, exponents, noise, strict=True)
        ]

    def _exponent(self, array: Floats) -> int:
        size = self.step * rms(array)
        if not size or not math.isfinite(size):
            return _ZERO
        return min(max(round(math.log2(size)) + _MIDDLE, 1), 255)

    def _noise(self, arrays: Sequence[Floats], key: Key) -> list[Floats]:
        if not self.dither:
            return [np.zeros(1, np.float32) for _ in arrays]
        draws = keys.generator(key).random(sum(a.size for a in arrays), dtype=np.float32)
        draws -= np.float32(0.5)
        return np.split(draws, np.cumsum([a.size for a in arrays])[:-1]) if arrays else []
