"""Bytes taken apart: counts of seven bits a byte, and a reader that never passes the end."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.integer[Any]]
Pieces: TypeAlias = list[bytes | memoryview]  # bytes still to be joined
A = TypeVar("A", bound=np.generic)
_BLOCK: Final = 1 << 14


def size_of(pieces: Pieces) -> int:
    return sum(memoryview(piece).nbytes for piece in pieces)


def runs_of(values: NDArray[A], sizes: Sequence[int]) -> list[NDArray[A]]:
    """Consecutive parts of the given sizes."""
    ends = list(accumulate(sizes))
    return [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def set_places(bits: Bools) -> Ints:
    """np.flatnonzero, but twice as fast where about one bit of twenty is set."""
    if 8 * np.count_nonzero(bits) > bits.size:
        return np.flatnonzero(bits)
    packed = np.packbits(bits)
    at = np.flatnonzero(packed != 0)
    inside = np.flatnonzero(np.unpackbits(packed[at]).view(np.bool_))
    places: Ints = (8 * at).take(inside >> 3)
    places += np.bitwise_and(inside, 7, out=inside)
    return places


def unpack(packed: NDArray[np.uint8], bits: Bools) -> None:
    """Fill `bits` from packed bytes, without another array of their size."""
    for start in range(0, bits.size, _BLOCK):
        part = bits[start : start + _BLOCK]
        part[:] = np.unpackbits(packed[start // 8 : (start + _BLOCK) // 8], count=part.size)


def bit_range(packed: NDArray[np.uint8], start: int, end: int) -> NDArray[np.uint8]:
    """Bits from `start` to `end`, highest of each byte first."""
    first = start // 8
    return np.unpackbits(packed[first : (end + 7) // 8])[start - 8 * first : end - 8 * first]


def count_bytes(value: int) -> bytes:
    """A count, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def place_bytes(places: Ints) -> bytes:
    """Places in ascending order: how many, and the gaps between."""
    out = bytearray(count_bytes(places.size))
    for gap in np.diff(places, prepend=-1).tolist():
        out += count_bytes(gap - 1)
    return bytes(out)


class Reader:
    """Takes pieces off a buffer, never past its end."""

    def __init__(self, data: memoryview | bytes, what: str) -> None:
        self._data = memoryview(data)
        self._what = what

    def __len__(self) -> int:
        return len(self._data)

    def error(self, text: str) -> WireError:
        return WireError(f"{self._what}: {text}")

    def take(self, size: int) -> memoryview:
        if size > len(self._data):
            raise self.error(f"{size} bytes expected, {len(self._data)} left.")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def rest(self) -> memoryview:
        return self.take(len(self._data))

    def byte(self) -> int:
        return self.take(1)[0]

    def count(self, most: int) -> int:
        """A count of at most `most`."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
        if value > most:
            raise self.error(f"a count of at most {most} expected, found {value}.")
        return value

    def places(self, size: int) -> list[int]:
        """Places below `size`, as `place_bytes` wrote them."""
        count, place, places = self.count(size), -1, list[int]()
        for _ in range(count):
            place += 1 + self.count(size)
            if place >= size:
                raise self.error(f"a place below {size} expected, found {place}.")
            places.append(place)
        return places

    def finish(self) -> None:
        if len(self._data):
            raise self.error(f"{len(self._data)} bytes are left over.")
