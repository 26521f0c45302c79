"""Matrices as a product of two thin ones.

Source   Vogels et al., "PowerSGD", NeurIPS 2019.
Rule     M of n x m is sent as P = orth(M Q) and M^T P, of r columns each, with Q normal from the
         message's key; the receiver has P (M^T P)^T. Biased: it wants error feedback.
Differs  Q is drawn anew for every message, where PowerSGD starts from the last M^T P: a client
         that is asked rarely has nothing to start from. Tensors that are no larger than their two
         factors, and values under a mask, travel as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedsieve.core import keys
from fedsieve.core.keys import Key, fold
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader
from fedsieve.wire.compressors.base import Floats
from fedsieve.wire.compressors.dense import Fp32, Values

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class LowRank:
    """Two thin factors of every matrix, by one step of power iteration."""

    rank: int = option(2, "columns of a factor")
    values: Values = option(Fp32(), "how factors and other tensors are written")

    def __post_init__(self) -> None:
        in_range("low_rank: rank", self.rank, 1)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        return self.encode_tables(arrays, [array.shape for array in arrays], key)

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        return self.decode_tables(reader, [(size,) for size in sizes], key)

    def encode_tables(self, arrays: Sequence[Floats], shapes: Sequence[Shape], key: Key) -> Pieces:
        """Arrays of which the shapes are known."""
        factors: list[Floats] = []
        for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
            if self._is_cut(shape):
                matrix = array.reshape(shape[0], -1)
                start = keys.normal(fold(key, number), (matrix.shape[1], self.rank)).numpy()
                left, _ = np.linalg.qr(matrix @ start)
                factors += [left.reshape(-1), (matrix.T @ left).reshape(-1)]
            else:
                factors.append(array.reshape(-1))
        return self.values.encode(factors, key)

    def decode_tables(self, reader: Reader, shapes: Sequence[Shape], key: Key) -> list[Floats]:
        """Arrays of these shapes, flat."""
        sizes = [size for shape in shapes for size in self._sizes(shape)]
        factors = iter(self.values.decode(reader, sizes, key))
        arrays = []
        for shape in shapes:
            if self._is_cut(shape):
                left, right = (next(factors).reshape(-1, self.rank) for _ in range(2))
                arrays.append((left @ right.T).reshape(-1))
            else:
                arrays.append(next(factors))
        return arrays

    def _is_cut(self, shape: Shape) -> bool:
        size = math.prod(shape)
        return len(shape) > 1 and size > 0 and self.rank * (shape[0] + size // shape[0]) < size

    def _sizes(self, shape: Shape) -> tuple[int, ...]:
        size = math.prod(shape)
        if not self._is_cut(shape):
            return (size,)
        return self.rank * shape[0], self.rank * (size // shape[0])
