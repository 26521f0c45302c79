"""Shared pieces of the entropy coders: bounded reading, Rice codes, bins of rows, ANS.

Probabilities travel as one-byte levels on an integer grid, and every table is computed from them
in integers, so both ends hold the same table by construction. The numbers handed to constriction
are those integers as floats; `perfect=False` fixes how it rounds them.
"""

import math
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError

try:
    import constriction  # type: ignore[import-untyped,unused-ignore]
except ImportError:  # the coders then use numpy alone, and cannot read what was made with it
    constriction = None

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.integer[Any]]

# Level 0 is 0; level j > 0 is a float of 3 mantissa bits: 8 values an octave, 6 % apart at most.
LEVELS: Final = (0, *((8 + j % 8) << (j // 8) for j in range(255)))
HALF: Final = 127  # as a share of SCALE, this level is one half
SCALE: Final = 2 * LEVELS[HALF]
MAX_BINS: Final = 32
_BIN_BITS: Final = 20  # header of one bin of rows: its size and its level
_BYTES: Final = np.arange(256)


def level_of(value: int, most: int = 255) -> int:
    """The level nearest to `value`; only 0 has level 0."""
    if value < 8:
        return int(value > 0)
    shift = value.bit_length() - 4
    return min(8 * shift + ((value + (1 << shift >> 1)) >> shift) - 7, most)


def density_level(ones: int, size: int) -> int:
    """Level of the rarer bit's share, plus 128 where that bit is 0."""
    inverted = 2 * ones > size
    rarer = size - ones if inverted else ones
    share = max(rarer * SCALE // size, 1) if rarer else 0
    return level_of(share, HALF) | inverted << 7


def count_bytes(value: int) -> bytes:
    """A count, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
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

    def finish(self) -> None:
        if len(self._data):
            raise self.error(f"{len(self._data)} bytes are left over.")


def rice_bytes(bits: Bools, *, inverted: bool) -> bytes:
    """Gaps between the set bits (`inverted`: the others), high parts in unary, low parts as planes.

    shift | inverted << 7, number of gaps, length of the unary bits, unary bits, low bits
    """
    positions = np.flatnonzero(~bits if inverted else bits)
    gaps = np.diff(positions, prepend=-1) - 1
    count = gaps.size
    most = (bits.size // count).bit_length() - 1  # count << shift <= size, as the reader expects
    near = max(int(gaps.sum()) // count, 1).bit_length() - 1
    shifts = [s for s in (near - 1, near, near + 1) if 0 <= s <= most]
    shift = min(shifts, key=lambda s: s * count + int((gaps >> s).sum()))
    ends = np.cumsum((gaps >> shift) + 1)
    unary = np.zeros(ends[-1], np.bool_)
    unary[ends - 1] = True
    low = (gaps >> np.arange(shift)[:, None]) & 1
    head = bytes([shift | inverted << 7]) + count_bytes(count) + count_bytes(unary.size)
    return head + np.packbits(unary).tobytes() + np.packbits(low.astype(np.bool_)).tobytes()


def read_rice(reader: Reader, size: int) -> Bools:
    """The bits `rice_bytes` was given; no more than half of them can be set (or not)."""
    head = reader.byte()
    shift, inverted = head & 127, bool(head >> 7)
    count = reader.count(size // 2)
    if count < 1 or count << shift > size:
        raise reader.error(f"{count} gaps of {shift} low bits do not fit {size} positions.")
    length = reader.count(count + (size >> shift))
    unary = np.unpackbits(_bytes(reader, length), count=length)
    # Narrow numbers: a forged frame must not take more memory than the tensors it stands for.
    ends = np.flatnonzero(unary).astype(np.int32 if size < 2**29 else np.int64)
    if ends.size != count or ends[-1] + 1 != length:
        raise reader.error(f"{count} gaps in {length} unary bits expected, found {ends.size}.")
    low = np.unpackbits(_bytes(reader, shift * count), count=shift * count).reshape(shift, count)
    gaps = np.diff(ends, prepend=ends.dtype.type(-1))
    gaps -= 1
    gaps <<= shift
    for plane, row in enumerate(low):
        gaps |= row.astype(gaps.dtype) << plane
    gaps += 1
    positions = np.cumsum(gaps, dtype=gaps.dtype, out=gaps)
    positions -= 1
    if positions[-1] >= size:
        raise reader.error(f"{size} positions expected, found a bit at {positions[-1]}.")
    bits = np.full(size, inverted)
    bits[positions] = not inverted
    return bits


def _bytes(reader: Reader, bits: int) -> NDArray[np.uint8]:
    return np.frombuffer(reader.take((bits + 7) // 8), np.uint8)


def entropy(ones: int, size: int) -> float:
    """Bits for `size` positions of which `ones` are set, all alike."""
    if not 0 < ones < size:
        return 0.0
    zeros = size - ones
    return ones * math.log2(size / ones) + zeros * math.log2(size / zeros)


def row_bins(counts: Ints, width: int) -> tuple[Ints | None, float]:
    """Rows in bins of like density, and the bits for all of it; None where one bin is best.

    Starts from bins even in the angle arcsin(sqrt(density)), where chance is the same size
    everywhere, and merges neighbours while that makes bins + bin numbers + bits cheaper.
    """
    rows = counts.size
    values, times = np.unique(counts, return_counts=True)
    pooled = entropy(int(counts.sum()), rows * width)
    each = zip(values.tolist(), times.tolist(), strict=True)
    apart = sum(r * entropy(ones, width) for ones, r in each)
    if pooled - apart <= rows + _BIN_BITS:  # chance alone makes about 0.7 bits a row
        return None, pooled + 8
    angle = np.arcsin(np.sqrt(values / width))
    inner = angle[(values > 0) & (values < width)]
    low, high = (inner[0], inner[-1]) if inner.size else (0.0, 0.0)
    first = 1 + ((angle - low) * ((MAX_BINS - 3) / max(high - low, 1e-9))).astype(np.intp)
    first[values == 0], first[values == width] = 0, MAX_BINS - 1
    starts = np.flatnonzero(np.diff(first, prepend=-1))
    ones = np.add.reduceat(values * times, starts).tolist()
    sizes = np.add.reduceat(times, starts).tolist()
    lasts = [*values[starts[1:] - 1].tolist(), int(values[-1])]

    def bits(ones: int, size: int) -> float:
        return entropy(ones, size * width) + size * math.log2(rows / size) + _BIN_BITS

    def saved(i: int) -> float:
        return costs[i] + costs[i + 1] - bits(ones[i] + ones[i + 1], sizes[i] + sizes[i + 1])

    costs = [bits(n, r) for n, r in zip(ones, sizes, strict=True)]
    gains = [saved(i) for i in range(len(sizes) - 1)]
    while gains and max(gains) > 0:
        i = gains.index(max(gains))
        for pile in (ones, sizes):
            pile[i] += pile.pop(i + 1)
        del lasts[i], costs[i], gains[i]
        costs[i] = bits(ones[i], sizes[i])
        for j in range(max(i - 1, 0), min(i + 1, len(gains))):
            gains[j] = saved(j)
    return (np.searchsorted(lasts, counts), sum(costs)) if gains else (None, pooled + 8)


def has_ans() -> bool:
    return constriction is not None


class AnsWriter:
    """Collects symbols with their models; `finish` codes them all into one stream."""

    def __init__(self) -> None:
        self._steps: list[tuple[NDArray[np.int32], Any]] = []

    def symbols(self, symbols: Ints, weights: tuple[int, ...]) -> None:
        """Symbols 0, 1, ... with probabilities in proportion to integer weights."""
        self._steps.append((symbols.astype(np.int32), _model(weights)))

    def packed(self, packed: NDArray[np.uint8], split: int, low: int, high: int) -> None:
        """Bytes whose `split` lowest bits have one density level, the others another."""
        if not _is_certain(split, low, high):
            self._steps.append((packed.astype(np.int32), _byte_model(split, low, high)))

    def bits(self, bits: Bools) -> int:
        """Bits that are alike but for their density; returns the level `AnsReader.bits` needs."""
        level = density_level(int(np.count_nonzero(bits)), bits.size)
        # The rarer bit is coded as 1, so that the padding behind the end costs nothing.
        self.packed(np.packbits(~bits if level >> 7 else bits), 0, 0, level & 127)
        return level

    def finish(self) -> bytes:
        coder = constriction.stream.stack.AnsCoder()
        for symbols, model in reversed(self._steps):
            coder.encode_reverse(symbols, model)
        words: NDArray[np.uint32] = coder.get_compressed()
        return words.astype("<u4").tobytes().rstrip(b"\0")


class AnsReader:
    """Reads a stream of AnsWriter; the caller knows what comes, how much, and with what model."""

    def __init__(self, data: memoryview, what: str) -> None:
        if constriction is None:
            raise WireError(f"{what}: made with constriction, which is not installed here.")
        self._what = what
        words = np.frombuffer(bytes(data) + bytes(-len(data) % 4), "<u4").astype(np.uint32)
        if len(data) and not data[-1]:
            raise WireError(f"{what}: an ANS stream does not end in zeros.")
        self._coder = constriction.stream.stack.AnsCoder(words)

    def symbols(self, count: int, weights: tuple[int, ...]) -> NDArray[np.int32]:
        decoded: NDArray[np.int32] = self._coder.decode(_model(weights), count)
        return decoded

    def packed(self, count: int, split: int, low: int, high: int) -> NDArray[np.uint8]:
        if _is_certain(split, low, high):
            return np.zeros(count, np.uint8)
        decoded: NDArray[np.int32] = self._coder.decode(_byte_model(split, low, high), count)
        return decoded.astype(np.uint8)

    def bits(self, count: int, level: int) -> Bools:
        packed = self.packed((count + 7) // 8, 0, 0, level & 127)
        if level >> 7:
            np.invert(packed, out=packed)
        return np.unpackbits(packed, count=count).view(np.bool_)

    def finish(self) -> None:
        if not self._coder.is_empty():
            raise WireError(f"{self._what}: the ANS stream does not end where its symbols do.")


def _model(weights: tuple[int, ...]) -> Any:
    table = np.array(weights, np.float64)
    return constriction.stream.model.Categorical(table, perfect=False)


def _is_certain(split: int, low: int, high: int) -> bool:
    """Whether only the byte 0 can occur."""
    return (split == 0 or low == 0) and (split == 8 or high == 0)


@lru_cache(maxsize=1024)
def _byte_model(split: int, low: int, high: int) -> Any:
    (one, zero), (one_high, zero_high) = (
        (SCALE - LEVELS[x & 127], LEVELS[x & 127]) if x >> 7 else (LEVELS[x], SCALE - LEVELS[x])
        for x in (low, high)
    )
    weights = [
        [
            float(one**i * zero ** (split - i) * one_high**j * zero_high ** (8 - split - j))
            for j in range(9 - split)
        ]
        for i in range(split + 1)
    ]
    low_ones = np.bitwise_count(_BYTES & ((1 << split) - 1))
    table = np.array(weights)[low_ones, np.bitwise_count(_BYTES >> split)]
    # A lazy model gives the same bits; it is three times faster where most bytes are 0.
    is_rare = 6 * (split * one + (8 - split) * one_high) < SCALE
    return constriction.stream.model.Categorical(table, perfect=False, lazy=is_rare)
