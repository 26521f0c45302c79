"""Small whole numbers as bytes: several to a symbol, symbols by ANS, rare large ones apart.

Numbers from -m to m are digits of base 2m + 1, as many to a symbol as fit a byte; symbols have the
product of their digits' weights, which travel as one-byte levels. Numbers beyond m are counted as 0
and stand in a list: gaps between their places, and values. Of the possible m the cheapest is taken,
for each segment of a message: tensors one after another, small ones together. Of numbers that are
mostly large, the lowest bits are noise and stand apart as they are.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Pieces, Reader, count_bytes, place_bytes, runs_of
from fedsieve.wire.entropy import LEVELS, AnsReader, AnsWriter, level_of

Numbers: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]
MAX_NUMBER: Final = 2**30
_DIGITS: Final = {0: 1, 1: 5, 2: 3, 3: 2, 7: 2, 31: 1, 127: 1}  # to a symbol, by the largest number
_RANGES: Final = tuple(_DIGITS)
_SEGMENT: Final = 4096  # numbers that are worth a table of their own
_SCALE: Final = 1 << 16
_SHIFTS: Final = 26


class _Part(NamedTuple):
    """What is known of a segment before its symbols are read."""

    most: int
    shift: int
    weights: tuple[float, ...]
    places: list[int]
    values: list[int]
    low: Numbers


def encode_integers(arrays: Sequence[Numbers]) -> Pieces:
    """Arrays one after another; both ends know their sizes.

    Numbers are at most MAX_NUMBER in magnitude.
    """
    heads, low, ans = bytearray(), list[bytes](), AnsWriter()
    for start, end in segments([array.size for array in arrays]):
        numbers = np.concatenate(arrays[start:end]) if end - start > 1 else arrays[start]
        shift = _noisy_bits(numbers)
        low += _low_bits(numbers, shift)
        numbers = numbers >> shift
        most = _cheapest(numbers)
        small, large = _apart(numbers, most)
        levels = _levels(small, most)
        heads += bytes([_RANGES.index(most), shift]) + levels + large
        if most:
            digits = (small + most).astype(np.uint8)
            ans.symbols(joined(digits, 2 * most + 1), joint(_weights(levels), _DIGITS[most]))
    return [count_bytes(len(heads)), bytes(heads), *low, ans.finish()]


def decode_integers(reader: Reader, sizes: Sequence[int]) -> list[Numbers]:
    """Arrays of the given sizes; takes all that is left.

    Raises:
        WireError: the bytes are not that many numbers.
    """
    heads = Reader(reader.take(reader.count(len(reader))), "integers")
    parts = list[_Part]()
    for start, end in segments(sizes):
        size = sum(sizes[start:end])
        tag, shift = heads.byte(), heads.byte()
        if tag >= len(_RANGES):
            raise heads.error(f"a range 0 to {len(_RANGES) - 1} expected, found {tag}.")
        if shift > _SHIFTS:
            raise heads.error(f"at most {_SHIFTS} low bits expected, found {shift}.")
        most = _RANGES[tag]
        levels = bytes(heads.take(2 * most + 1)) if most else b""
        places = heads.places(size)
        values = [_read_signed(heads) for _ in places]
        low = _read_low(reader, size, shift)
        parts.append(_Part(most, shift, _weights(levels), places, values, low))
    heads.finish()
    ans = AnsReader(reader.rest(), "integers")
    arrays: list[Numbers] = []
    for (start, end), part in zip(segments(sizes), parts, strict=True):
        numbers = np.zeros(part.low.size, np.int32)
        if part.most:
            digits = _DIGITS[part.most]
            symbols = ans.small_symbols(-(-numbers.size // digits), joint(part.weights, digits))
            numbers[:] = split(symbols, 2 * part.most + 1, digits)[: numbers.size]
            numbers -= part.most
        numbers[part.places] = part.values
        numbers <<= part.shift
        numbers += part.low
        arrays += runs_of(numbers, sizes[start:end])
    ans.finish()
    return arrays


def segments(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of arrays that share a table."""
    start = held = 0
    for at, size in enumerate(sizes):
        held += size
        if held >= _SEGMENT:
            yield start, at + 1
            start, held = at + 1, 0
    if start < len(sizes):
        yield start, len(sizes)


def joined(digits: Bytes, base: int) -> Bytes:
    """Digits as symbols, as many to each as fit a byte; the last is filled up."""
    count = fitting(base)
    if count == 1:
        return digits
    whole = digits.size // count * count
    symbols = np.empty(-(-digits.size // count), np.uint8)
    rows = digits[:whole].reshape(-1, count)
    main = symbols[: len(rows)]
    main[:] = rows[:, 0]
    for place in range(1, count):
        main *= base
        main += rows[:, place]
    if whole < digits.size:
        last = [*digits[whole:].tolist(), *[base // 2] * count][:count]
        symbols[-1] = sum(d * base ** (count - 1 - i) for i, d in enumerate(last))
    return symbols


def split(symbols: Bytes, base: int, count: int) -> Bytes:
    """The digits of symbols, the filling included."""
    return symbols if count == 1 else _table(base, count).take(symbols, axis=0).reshape(-1)


@lru_cache(maxsize=16)
def _table(base: int, count: int) -> Bytes:
    """The digits of every symbol; symbols that do not occur have those of 0."""
    table = np.zeros((256, count), np.uint8)
    powers = base ** np.arange(count - 1, -1, -1)
    table[: base**count] = np.arange(base**count)[:, None] // powers % base
    return table


def fitting(base: int) -> int:
    """How many digits of a base fit a byte."""
    return max(n for n in range(1, 9) if base**n <= 256)


@lru_cache(maxsize=256)
def joint(weights: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Weights of symbols of `count` digits, which are independent."""
    if count == 1:
        return weights
    total = sum(weights)
    shares = np.array([max(w * _SCALE // total, 1.0) if w else 0 for w in weights], np.float64)
    table = shares
    for _ in range(count - 1):
        table = np.multiply.outer(table, shares).reshape(-1)
    return tuple((table + 1).tolist())


def _noisy_bits(numbers: Numbers) -> int:
    """How many low bits are noise: so many that few numbers above them exceed 31."""
    size = float(np.sqrt(np.mean(np.square(numbers, dtype=np.float64)))) if numbers.size else 0.0
    return min(max(math.frexp(size / 8)[1], 0), _SHIFTS)


def _low_bits(numbers: Numbers, shift: int) -> list[bytes]:
    return [np.packbits((numbers >> bit & 1).astype(np.bool_)).tobytes() for bit in range(shift)]


def _read_low(reader: Reader, size: int, shift: int) -> Numbers:
    low = np.zeros(size, np.int32)
    for bit in range(shift):
        packed = np.frombuffer(reader.take(-(-size // 8)), np.uint8)
        low |= np.unpackbits(packed, count=size).astype(np.int32) << bit
    return low


def _cheapest(numbers: Numbers) -> int:
    """The range with the shortest code, about."""
    counts = np.bincount(np.minimum(np.abs(numbers), 128), minlength=129)
    size, costs = max(numbers.size, 1), dict[int, float]()
    for most in _RANGES:
        inside, beyond = counts[: most + 1].astype(float), float(counts[most + 1 :].sum())
        inside[0] += beyond
        seen = inside[inside > 0]
        entropy = float(seen @ np.log2(size / seen)) + float(counts[1 : most + 1].sum())
        costs[most] = entropy + beyond * (10 + np.log2(size)) + 8 * (2 * most + 1)
    return min(costs, key=costs.__getitem__)


def _apart(numbers: Numbers, most: int) -> tuple[Numbers, bytes]:
    """The numbers with those beyond `most` as 0, and the list of these."""
    places = np.flatnonzero(np.abs(numbers) > most)
    coded = bytearray(place_bytes(places))
    for value in numbers[places].tolist():
        coded += count_bytes(2 * abs(value) + (value < 0))
    if places.size:
        numbers = numbers.copy()
        numbers[places] = 0
    return numbers, bytes(coded)


def _read_signed(reader: Reader) -> int:
    coded = reader.count(2 * MAX_NUMBER + 1)
    return -(coded >> 1) if coded & 1 else coded >> 1


def _levels(numbers: Numbers, most: int) -> bytes:
    if not most:
        return b""
    counts = np.bincount(numbers + most, minlength=2 * most + 1)
    return bytes(level_of(int(count)) for count in 64 * counts)


def _weights(levels: bytes) -> tuple[int, ...]:
    weights = tuple(LEVELS[level] for level in levels)
    return weights if any(weights) else (1,) * len(weights)
