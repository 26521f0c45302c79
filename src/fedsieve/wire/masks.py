"""Masks as bytes, close to their information limit.

A mask is one flat bool array over several tensors; its layout gives each tensor's (rows, columns).
The first byte says which coder was used:

    EMPTY, FULL   nothing follows
    BITMAP        eight positions a byte, lowest bit first
    RICE          gaps between the rarer bits, Golomb-Rice with unary and low bits apart; numpy only
    FLAT          ANS over packed bytes, one density for all positions
    LAYERS        ANS, each tensor by itself: empty columns left out, rows in bins of like density

A change against a mask the receiver holds is two such masks: what was lost, over the positions that
were kept before, and what has grown, over the others.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import AnsReader, AnsWriter, Bools, Ints, Reader, count_bytes, has_ans

Layout: TypeAlias = tuple[tuple[int, int], ...]

EMPTY, FULL, BITMAP, RICE, FLAT, LAYERS = range(6)
SAME, CHANGED, ANEW = range(3)
MAX_BINS: Final = 32
_FEW: Final = 2048  # so few rarer bits are worth trying RICE for: it has almost no header
_BIN_BITS: Final = 20  # header of one bin: a level and a count
_COLUMNS, _STEPS = 32, 64  # flags beside the number of bins

# _SELECT[b, j] is the position of the j-th set bit of byte b.
_SELECT: Final = np.argsort(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 0,
    axis=1,
    kind="stable",
).astype(np.uint8)


def encode_mask(kept: Bools, layout: Layout) -> bytes:
    """A mask as bytes."""
    ones, size = int(np.count_nonzero(kept)), kept.size
    if ones in {0, size}:
        return bytes([FULL if ones else EMPTY])
    bitmap_bits = 8.0 * ((size + 7) // 8)
    rarer = min(ones, size - ones)
    found = []
    if has_ans():
        plans = [_plan(part) for part in _parts(kept, layout)]
        flat_bits = _entropy(ones, size) + 32
        layer_bits = sum(plan.bits for plan in plans) + 16
        if min(flat_bits, layer_bits) < bitmap_bits:
            found.append(_ans(kept, plans) if layer_bits < flat_bits else _flat(kept))
    if rarer < _FEW or (not has_ans() and _entropy(ones, size) < 0.96 * bitmap_bits):
        found.append(_rice(kept, inverted=2 * ones > size))
    if not found or 8 * min(map(len, found)) > bitmap_bits:
        return bytes([BITMAP]) + np.packbits(kept, bitorder="little").tobytes()
    return min(found, key=len)


def decode_mask(data: memoryview, layout: Layout) -> Bools:
    """The mask in `data`, of the size `layout` says.

    Raises:
        WireError: the bytes are not a mask of that layout.
    """
    size = sum(rows * columns for rows, columns in layout)
    reader = Reader(data, "mask")
    match reader.byte():
        case 0 | 1 as full:
            kept = np.full(size, bool(full))
        case 2:
            packed = np.frombuffer(reader.take((size + 7) // 8), np.uint8)
            bits = np.unpackbits(packed, bitorder="little")
            if bits[size:].any():
                raise reader.error(f"bits set behind the end of {size} positions.")
            kept = bits[:size].view(np.bool_)
        case 3:
            kept = _read_rice(reader, size)
        case 4:
            level = reader.byte()
            ans = AnsReader(reader.rest(), "mask")
            kept = ans.bits(size, level)
            ans.finish()
        case 5:
            kept = _read_layers(reader, size, layout)
        case tag:
            raise reader.error(f"a coder from 0 to {LAYERS} expected, found {tag}.")
    reader.finish()
    return kept


def encode_change(kept: Bools, before: Bools, layout: Layout) -> bytes:
    """What turns the mask `before`, which the receiver holds, into `kept`."""
    changed = np.flatnonzero(kept != before)
    if not changed.size:
        return bytes([SAME])
    were = before[changed]
    index = _Ranks(before)
    lost = np.zeros(index.ones, np.bool_)
    lost[index.ranks(changed[were])] = True
    grown = np.zeros(before.size - index.ones, np.bool_)
    others = changed[~were]
    grown[others - index.ranks(others)] = True
    old, new = _split(before, layout)
    first = encode_mask(lost, old)
    data = bytes([CHANGED]) + count_bytes(len(first)) + first + encode_mask(grown, new)
    if 4 * changed.size > index.ones:  # so much may be cheaper to say anew
        anew = bytes([ANEW]) + encode_mask(kept, layout)
        data = min(data, anew, key=len)
    return data


def decode_change(data: memoryview, before: Bools, layout: Layout) -> Bools:
    """The mask that `encode_change` was given, from the same `before`.

    Raises:
        WireError: the bytes are not a change of such a mask.
    """
    reader = Reader(data, "mask change")
    kept = before.copy()
    match reader.byte():
        case 0:
            pass
        case 1:
            old, new = _split(before, layout)
            lost = decode_mask(reader.take(reader.count(len(reader))), old)
            kept[_Ranks(before).positions(np.flatnonzero(lost))] = False
            grown = decode_mask(reader.rest(), new)
            kept[_Ranks(~before).positions(np.flatnonzero(grown))] = True
        case 2:
            kept = decode_mask(reader.rest(), layout)
        case tag:
            raise reader.error(f"a tag from 0 to {ANEW} expected, found {tag}.")
    reader.finish()
    return kept


class _Ranks:
    """Positions of set bits to their ranks among them, and back."""

    def __init__(self, bits: Bools) -> None:
        self._packed = np.packbits(bits, bitorder="little")
        self._upto = np.cumsum(np.bitwise_count(self._packed), dtype=np.int64)
        self.ones = int(self._upto[-1]) if bits.size else 0

    def ranks(self, positions: Ints) -> Ints:
        """How many set bits lie before each position."""
        byte = positions >> 3
        here = self._packed[byte]
        after = np.bitwise_count(here >> (positions & 7).astype(np.uint8))
        return self._upto[byte] - after

    def positions(self, ranks: Ints) -> Ints:
        byte = np.searchsorted(self._upto, ranks, side="right")
        here = self._packed[byte]
        inner = ranks - self._upto[byte] + np.bitwise_count(here)
        return 8 * byte + _SELECT[here, inner]


class _Plan(NamedTuple):
    """How LAYERS codes one tensor: its live columns (None: all), each row's bin, the cost."""

    part: Bools
    live: Bools | None
    bins: NDArray[np.intp]
    num_bins: int
    bits: float


def _parts(flat: Bools, layout: Layout) -> Iterator[Bools]:
    """Views of each tensor as a matrix; one column says nothing about rows, so it lies flat."""
    start = 0
    for rows, columns in layout:
        size = rows * columns
        if size:
            shape = (1, rows) if columns == 1 else (rows, columns)
            yield flat[start : start + size].reshape(shape)
        start += size


def _split(before: Bools, layout: Layout) -> tuple[Layout, Layout]:
    """Layouts of the positions kept before and of the others, tensor by tensor."""
    ones = [(int(np.count_nonzero(part)), part.size) for part in _parts(before, layout)]
    return tuple((1, n) for n, _ in ones), tuple((1, size - n) for n, size in ones)


def _entropy(ones: float, size: float) -> float:
    """Bits of `size` positions of which `ones` are set, all alike."""
    if not 0 < ones < size:
        return 0.0
    zeros = size - ones
    return ones * math.log2(size / ones) + zeros * math.log2(size / zeros)


def _plan(part: Bools) -> _Plan:
    rows, columns = part.shape
    counts = part.view(np.uint8).sum(axis=1, dtype=np.int64) if rows > 1 else None
    if counts is None:
        bits = _entropy(int(np.count_nonzero(part)), part.size)
        return _Plan(part, None, np.zeros(1, np.intp), 1, bits + 16)
    live = part.any(axis=0)
    width = int(np.count_nonzero(live))
    used, ones = int(np.count_nonzero(counts)), int(counts.sum())
    flag_bits = min(_entropy(width, columns), _entropy(_count_steps(live), columns)) + 8
    gain = _entropy(ones, used * columns) - _entropy(ones, used * width)
    with_columns = gain > flag_bits and ones > 0
    if not with_columns:
        width = columns
    bins, num_bins, bits = _bins(counts, width)
    return _Plan(part, live if with_columns else None, bins, num_bins, bits + flag_bits * with_columns + 8)


def _count_steps(flags: Bools) -> int:
    return int(np.count_nonzero(flags[1:] != flags[:-1])) + int(flags[0])


def _bins(counts: Ints, width: int) -> tuple[NDArray[np.intp], int, float]:
    """Rows in bins of like density: bin of each row, number of bins, bits for all of it.

    Starts from 32 bins even in the angle arcsin(sqrt(density)), where chance has the same size
    everywhere, and merges neighbours while that makes bins + bin numbers + bits cheaper.
    """
    rows = counts.size
    distinct, times = np.unique(counts, return_counts=True)
    pooled = _entropy(int(counts.sum()), rows * width)
    apart = sum(t * _entropy(n, width) for n, t in zip(distinct.tolist(), times.tolist(), strict=True))
    if pooled - apart <= rows + _BIN_BITS:  # chance alone makes about 0.7 bit a row
        return np.zeros(rows, np.intp), 1, pooled + 8
    angle = np.arcsin(np.sqrt(distinct / width))
    inner = angle[(distinct > 0) & (distinct < width)]
    low, high = (inner.min(), inner.max()) if inner.size else (0.0, 1.0)
    first = 1 + np.clip((angle - low) * ((MAX_BINS - 3) / max(high - low, 1e-9)), 0, MAX_BINS - 3)
    first[distinct == 0] = 0
    first[distinct == width] = MAX_BINS - 1
    # Bins as [ones, rows, last distinct count in it], sorted by density.
    starts = np.flatnonzero(np.diff(first.astype(np.intp), prepend=-1))
    ones = np.add.reduceat(distinct * times, starts).tolist()
    sizes = np.add.reduceat(times, starts).tolist()
    bins = [(n, r) for n, r in zip(ones, sizes, strict=True)]
    ends = [*(starts[1:] - 1).tolist(), distinct.size - 1]

    def bits(bin_: tuple[int, int]) -> float:
        n, r = bin_
        return _entropy(n, r * width) + r * math.log2(rows / r) + _BIN_BITS

    def merged(i: int) -> tuple[int, int]:
        return bins[i][0] + bins[i + 1][0], bins[i][1] + bins[i + 1][1]

    costs = [bits(b) for b in bins]
    saved = [costs[i] + costs[i + 1] - bits(merged(i)) for i in range(len(bins) - 1)]
    while saved and max(saved) > 0:
        i = saved.index(max(saved))
        bins[i : i + 2] = [merged(i)]
        costs[i : i + 2] = [bits(bins[i])]
        del ends[i], saved[i]
        for j in range(max(i - 1, 0), min(i + 1, len(saved))):
            saved[j] = costs[j] + costs[j + 1] - bits(merged(j))
    return np.searchsorted(distinct[ends], counts), len(bins), sum(costs)
