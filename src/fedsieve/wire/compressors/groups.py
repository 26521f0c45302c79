"""Few bits with a scale for each group of values.

Rule     x' = s round(m x / s) / m with s = max |x| of the group and m = 2^(bits - 1) - 1, rounded
         up or down at random so that the mean is x: unbiased, error at most s / m.
Differs  `int8` of the wire has groups of 1024; small groups follow the range of values more closely
         and pay 32 bits each.
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
class Groups:
    """Whole numbers of a few bits, scaled by the largest value of a group."""

    bits: int = option(4, "of a value, before coding")
    size: int = option(256, "values of a group")

    def __post_init__(self) -> None:
        in_range("groups: bits", self.bits, 2, 8)
        in_range("groups: size", self.size, 1)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        count = sum(array.size for array in arrays)
        groups = self._padded(np.concatenate(arrays))
        scales = np.abs(groups).max(axis=1)
        scales[scales == 0] = 1
        groups /= scales[:, None]
        groups *= np.float32(self._most)
        scaled = groups.reshape(-1)[:count]
        lower = np.floor(scaled)
        scaled -= lower
        lower += keys.generator(key).random(count, dtype=np.float32) < scaled
        return [scales.astype("<f4").tobytes(), *encode_integers([lower.astype(np.int32)])]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        count = sum(sizes)
        scales = read_floats(reader, -(-count // self.size))
        (numbers,) = decode_integers(reader, [count])
        groups = self._padded(numbers.astype(np.float32))
        groups /= np.float32(self._most)
        groups *= scales[:, None]
        return runs_of(groups.reshape(-1)[:count], sizes)

    @property
    def _most(self) -> int:
        return int(2 ** (self.bits - 1)) - 1

    def _padded(self, flat: Floats) -> Floats:
        """A row for each group, the last one filled up with zeros; no longer than the values."""
        size = min(self.size, max(flat.size, 1))
        rows = np.zeros((-(-flat.size // size), size), np.float32)
        rows.reshape(-1)[: flat.size] = flat
        return rows
