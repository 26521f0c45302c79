"""What a compressor is: arrays of float32 to bytes and back, with draws that both ends share."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.keys import Key
from fedsieve.wire.bits import Pieces, Reader

Floats: TypeAlias = NDArray[np.float32]


class Compressor(Protocol):
    """A way to write float32 arrays; `key` addresses its draws and travels with the message."""

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        """The arrays, one for each tensor, as pieces to be joined."""

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        """Arrays of the given sizes from all that is left to read.

        Raises:
            WireError: the bytes are not such arrays.
        """


def rms(array: Floats) -> float:
    """Root mean square; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def read_floats(reader: Reader, count: int) -> Floats:
    """float32 numbers as they are."""
    return np.frombuffer(reader.take(4 * count), "<f4").astype(np.float32)
