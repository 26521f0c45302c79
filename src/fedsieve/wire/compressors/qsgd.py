"""Levels by stochastic rounding.

Source   Alistarh et al., "QSGD", NeurIPS 2017; sent once a round in Reisizadeh et al., "FedPAQ",
         AISTATS 2020.
Rule     x' = |x| sign(x_i) z_i / s, where z_i is s |x_i| / |x| rounded up or down at random so that
         its mean is that; |x| is the norm of a bucket. Unbiased, with a variance of at most
         min(n / s^2, sqrt(n) / s) |x|^2 for a bucket of n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsieve.core import keys
from fedsieve.core.keys import Key
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader, runs_of
from fedsieve.wire.compressors.base import Floats, read_floats
from fedsieve.wire.integers import decode_integers, encode_integers


@dataclass(frozen=True)
class Qsgd:
    """Stochastic levels of the norm of each bucket."""

    levels: int = option(4, "s: how many above 0")
    bucket: int = option(512, "values that share a norm; 0: all of a tensor")

    def __post_init__(self) -> None:
        in_range("qsgd: levels", self.levels, 1, 2**15)
        in_range("qsgd: bucket", self.bucket, 0)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        generator, norms, numbers = keys.generator(key), list[Floats](), []
        for array in arrays:
            norm = self._norms(array)
            share = np.abs(array)
            share /= self._spread(norm, array.size)
            share *= self.levels
            lower = np.floor(share)
            lower += generator.random(array.size, dtype=np.float32) < share - lower
            norms.append(norm)
            numbers.append(np.copysign(lower, array).astype(np.int32))
        return [np.concatenate(norms).astype("<f4").tobytes(), *encode_integers(numbers)]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        counts = [self._buckets(size) for size in sizes]
        norms = runs_of(read_floats(reader, sum(counts)), counts)
        numbers = decode_integers(reader, sizes)
        return [
            number.astype(np.float32) / np.float32(self.levels) * self._spread(norm, number.size)
            for norm, number in zip(norms, numbers, strict=True)
        ]

    def _buckets(self, size: int) -> int:
        return -(-size // (self.bucket or max(size, 1)))

    def _norms(self, array: Floats) -> Floats:
        width = self.bucket or max(array.size, 1)
        starts = np.arange(0, array.size, width)
        if not array.size:
            return np.empty(0, np.float32)
        squares = np.add.reduceat(np.square(array, dtype=np.float64), starts)
        norms = np.sqrt(squares).astype(np.float32)
        return np.where(norms > 0, norms, np.float32(1))

    def _spread(self, norms: Floats, size: int) -> Floats:
        return np.repeat(norms, min(self.bucket or size, size))[:size]
