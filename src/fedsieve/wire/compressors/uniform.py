"""Uniform steps with subtractive dither.

Source   Roberts, "Picture coding using pseudo-random noise", 1962; in federated learning Shlezinger
         et al., "UVeQFed", 2020.
Rule     step = `step` root mean squares of the tensor, in 16 bits; u uniform in [-1/2, 1/2) from
         the message's key:  q = round(x / step + u),  x' = (q - u) step.
         The error is uniform in +-step/2 and independent of x: unbiased, variance step^2 / 12.
         Without dither q = round(x / step): less error near 0, and biased.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsieve.core import keys
from fedsieve.core.keys import Key
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader, runs_of
from fedsieve.wire.compressors.base import Floats, rms
from fedsieve.wire.integers import MAX_NUMBER, decode_integers, encode_integers


@dataclass(frozen=True)
class Uniform:
    """Whole multiples of a step for each tensor."""

    step: float = option(1.0, "of the root mean square of a tensor")
    dither: bool = option(True, "draw where steps begin, from the message's key: no bias")

    def __post_init__(self) -> None:
        in_range("uniform: step", self.step, 0, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        steps = _coarse(np.array([self.step * rms(array) for array in arrays], np.float32))
        numbers = []
        for array, step, shift in zip(arrays, steps, self._noise(arrays, key), strict=True):
            scaled = array / step if step else np.zeros_like(array)
            scaled += shift
            np.rint(scaled, out=scaled)
            numbers.append(np.clip(scaled, -MAX_NUMBER, MAX_NUMBER).astype(np.int32))
        return [_halves(steps).tobytes(), *encode_integers(numbers)]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        halves = np.frombuffer(reader.take(2 * len(sizes)), "<u2")
        steps = (halves.astype(np.uint32) << 16).view(np.float32)
        numbers = decode_integers(reader, sizes)
        noise = self._noise([np.empty(size, np.float32) for size in sizes], key)
        return [
            (number.astype(np.float32) - shift) * step
            for number, step, shift in zip(numbers, steps, noise, strict=True)
        ]

    def _noise(self, arrays: Sequence[Floats], key: Key) -> list[Floats]:
        if not self.dither:
            return [np.zeros(1, np.float32) for _ in arrays]
        draws = keys.generator(key).random(sum(a.size for a in arrays), dtype=np.float32)
        draws -= np.float32(0.5)
        return runs_of(draws, [a.size for a in arrays])


def _coarse(steps: Floats) -> Floats:
    """Steps with 8 bits of mantissa, the next ones above; 0 where a tensor is 0 or not finite."""
    bits = np.where(np.isfinite(steps), steps, np.float32(0)).view(np.uint32)
    return ((bits + 0xFFFF) & 0xFFFF0000).view(np.float32)


def _halves(steps: Floats) -> NDArray[np.uint16]:
    return (steps.view(np.uint32) >> 16).astype("<u2")
