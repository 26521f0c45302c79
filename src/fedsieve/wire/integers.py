"""Small whole numbers as bytes: several to a symbol, symbols by ANS, rare large ones apart.

Numbers from -m to m are digits of base 2m + 1, as many to a symbol as fit a byte; symbols have the
product of their digits' weights, which travel as one-byte levels. Numbers beyond m are counted as 0
and stand in a list: gaps between their places, and values. Of the possible m the cheapest is taken,
for each segment of a message: tensors one after another, small ones together. Of numbers that are
mostly large, the lowest bits are noise and stand apart as they are. Where Huffman codes are as
good, for single digits, symbols are coded by zstd, which is several times faster.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Pieces, Reader, count_bytes, place_bytes, runs_of
from fedsieve.wire.entropy import LEVELS, AnsReader, AnsWriter, compress, decompress, level_of

Numbers: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]
Counts: TypeAlias = NDArray[np.intp]
MAX_NUMBER: Final = 2**30
_DIGITS: Final = {0: 1, 1: 5, 2: 3, 3: 2, 7: 2, 31: 1, 127: 1}  # to a symbol, by the largest number
_RANGES: Final = tuple(_DIGITS)
_SEGMENT: Final = 4096  # numbers that are worth a table of their own
_SCALE: Final = 1 << 16
_SHIFTS: Final = 26
_HUFFMAN: Final = 128  # beside a range
_AS_GOOD: Final = 1.01  # of the entropy
_BEYOND: Final = 128  # larger ones are counted together


class _Part(NamedTuple):
    """What is known of a segment before its symbols are read."""

    most: int
    shift: int
    weights: tuple[float, ...]
    places: list[int]
    values: list[int]
    low: Numbers
    digits: Bytes | None  # where they were coded by zstd


def encode_integers(arrays: Sequence[Numbers]) -> Pieces:
    """Arrays one after another; both ends know their sizes.

    Numbers are at most MAX_NUMBER in magnitude.
    """
    heads, low, ans = bytearray(), list[bytes](), AnsWriter()
    for start, end in segments([array.size for array in arrays]):
        numbers = np.concatenate(arrays[start:end]) if end - start > 1 else arrays[start]
        counts = _counts(numbers)
        if shift := _noisy_bits(numbers, counts):
            low += _low_bits(numbers, shift)
            numbers = numbers >> shift
            counts = _counts(numbers)
        most = _cheapest(counts)
        small, large = _apart(numbers, most, counts)
        tag, digits = _RANGES.index(most), (small + most).astype(np.uint8)
        if (huffman := _huffman(digits, most, counts)) is not None:
            heads += bytes([_HUFFMAN | tag, shift]) + large
            low += [count_bytes(len(huffman)), huffman]
            continue
        levels = _levels(counts, most)
        heads += bytes([tag, shift]) + levels + large
        if most:
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
        is_huffman, tag = bool(tag & _HUFFMAN), tag & ~_HUFFMAN
        if tag >= len(_RANGES):
            raise heads.error(f"a range 0 to {len(_RANGES) - 1} expected, found {tag}.")
        if shift > _SHIFTS:
            raise heads.error(f"at most {_SHIFTS} low bits expected, found {shift}.")
        most = _RANGES[tag]
        levels = bytes(heads.take(2 * most + 1)) if most and not is_huffman else b""
        places = heads.places(size)
        values = [_read_signed(heads) for _ in places]
        low = _read_low(reader, size, shift)
        digits = decompress(reader, reader.count(len(reader)), size) if is_huffman else None
        if digits is not None and digits.max(initial=0) > 2 * most:
            raise reader.error(f"digits up to {2 * most} expected, found {digits.max()}.")
        parts.append(_Part(most, shift, _weights(levels), places, values, low, digits))
    heads.finish()
    ans = AnsReader(reader.rest(), "integers")
    arrays: list[Numbers] = []
    for (start, end), part in zip(segments(sizes), parts, strict=True):
        numbers = np.zeros(part.low.size, np.int32)
        if part.digits is not None:
            numbers[:] = part.digits
            numbers -= part.most
        elif part.most:
            each = _DIGITS[part.most]
            symbols = ans.small_symbols(-(-numbers.size // each), joint(part.weights, each))
            numbers[:] = split(symbols, 2 * part.most + 1, each)[: numbers.size]
            numbers -= part.most
        numbers[part.places] = part.values
        numbers <<= part.shift
        numbers += part.low
        arrays += runs_of(numbers, sizes[start:end])
    ans.finish()
    return arrays


def _huffman(digits: Bytes, most: int, counts: Counts) -> bytes | None:
    """Digits by Huffman codes, if these are as good."""
    if not most or _DIGITS[most] > 1 or digits.size < _SEGMENT:
        return None
    coded, seen = compress(digits), counts[counts > 0]
    entropy = float(seen @ np.log2(digits.size / seen))
    return coded if 8 * len(coded) <= _AS_GOOD * entropy else None


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


def _counts(numbers: Numbers) -> Counts:
    """How often each number from -128 to 128 occurs, the first and the last with all beyond."""
    places = np.clip(numbers, -_BEYOND, _BEYOND).astype(np.int16)
    places += _BEYOND
    return np.bincount(places, minlength=2 * _BEYOND + 1)


def _noisy_bits(numbers: Numbers, counts: Counts) -> int:
    """How many low bits are noise: so many that few numbers above them exceed 31."""
    if counts[0] or counts[-1]:
        squares = float(np.sum(np.square(numbers, dtype=np.float64)))
    else:
        squares = float(counts @ np.square(np.arange(-_BEYOND, _BEYOND + 1)))
    size = math.sqrt(squares / max(numbers.size, 1))
    return min(max(math.frexp(size / 8)[1], 0), _SHIFTS)


def _low_bits(numbers: Numbers, shift: int) -> list[bytes]:
    return [np.packbits((numbers >> bit & 1).astype(np.bool_)).tobytes() for bit in range(shift)]


def _read_low(reader: Reader, size: int, shift: int) -> Numbers:
    low = np.zeros(size, np.int32)
    for bit in range(shift):
        packed = np.frombuffer(reader.take(-(-size // 8)), np.uint8)
        low |= np.unpackbits(packed, count=size).astype(np.int32) << bit
    return low


def _cheapest(counts: Counts) -> int:
    """The range with the shortest code, about."""
    sizes = counts[_BEYOND:].copy()  # by magnitude
    sizes[1:] += counts[:_BEYOND][::-1]
    size, costs = max(int(counts.sum()), 1), dict[int, float]()
    for most in _RANGES:
        inside, beyond = sizes[: most + 1].astype(float), float(sizes[most + 1 :].sum())
        inside[0] += beyond
        seen = inside[inside > 0]
        entropy = float(seen @ np.log2(size / seen)) + float(sizes[1 : most + 1].sum())
        costs[most] = entropy + beyond * (10 + np.log2(size)) + 8 * (2 * most + 1)
    return min(costs, key=costs.__getitem__)


def _apart(numbers: Numbers, most: int, counts: Counts) -> tuple[Numbers, bytes]:
    """The numbers with those beyond `most` as 0, and the list of these."""
    if not counts[: _BEYOND - most].any() and not counts[_BEYOND + most + 1 :].any():
        return numbers, place_bytes(np.zeros(0, np.intp))
    places = np.flatnonzero(np.abs(numbers) > most)
    coded = bytearray(place_bytes(places))
    for value in numbers[places].tolist():
        coded += count_bytes(2 * abs(value) + (value < 0))
    numbers = numbers.copy()
    numbers[places] = 0
    return numbers, bytes(coded)


def _read_signed(reader: Reader) -> int:
    coded = reader.count(2 * MAX_NUMBER + 1)
    return -(coded >> 1) if coded & 1 else coded >> 1


def _levels(counts: Counts, most: int) -> bytes:
    if not most:
        return b""
    inside = counts[_BEYOND - most : _BEYOND + most + 1].copy()
    inside[most] += counts.sum() - inside.sum()
    return bytes(level_of(int(count)) for count in 64 * inside)


def _weights(levels: bytes) -> tuple[int, ...]:
    weights = tuple(LEVELS[level] for level in levels)
    return weights if any(weights) else (1,) * len(weights)
