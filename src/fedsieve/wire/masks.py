"""Masks as bytes, close to their information limit.

A mask is one flat bool array over several tensors; its layout gives each tensor's (rows, columns).
The first byte says which coder was used:

    EMPTY, FULL   nothing follows
    BITMAP        eight positions a byte, lowest bit first
    FLAT          ANS over packed bytes, one density for all positions
    LAYERS        ANS, each tensor by itself: empty columns left out, rows in bins of like density
    ROWS          a mask over rows, each kept or dropped whole
    LIKELY        ANS, a density for bits of like probability in the message answered (`contexts`)
    DRAWN         which of the masks drawn from those probabilities (`drawn`)
"""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import Bools, Ints, Reader, bit_range, count_bytes, runs_of
from fedsieve.wire.entropy import AnsReader, AnsWriter, binary_entropy

Layout: TypeAlias = tuple[tuple[int, int], ...]

EMPTY, FULL, BITMAP, FLAT, LAYERS, ROWS, LIKELY, DRAWN = range(8)
_MAX_BINS: Final = 32
_BIN_BITS: Final = 20  # header of one bin of rows: its size and its level
_COLUMNS: Final = 32  # flags beside the number of bins
_STEPS: Final = 64
_AT_ONCE: Final = 1 << 14  # positions moved together


def encode_mask(kept: Bools, layout: Layout) -> bytes:
    """A mask as bytes."""
    ones, size = _ones(kept), kept.size
    if sum(rows * columns for rows, columns in layout) != size:
        raise WireError(f"mask: a layout of {size} positions expected, found {layout}.")
    if ones in {0, size}:
        return bytes([FULL if ones else EMPTY])
    whole = _whole_rows(kept, layout)
    if whole is not None:
        rows = bytes([ROWS]) + encode_mask(whole, ((1, whole.size),))
        if 8 * len(rows) <= size + 8:
            return rows
    flat_bits, plans = binary_entropy(ones, size), [_plan(part) for part in matrices(kept, layout)]
    layer_bits = sum(plan.bits for plan in plans)
    if min(flat_bits, layer_bits) + 32 < size:
        flat = [_Plan(kept.reshape(1, -1), flat_bits)]
        is_flat = flat_bits <= layer_bits
        coded = _tensors(FLAT, flat) if is_flat else _tensors(LAYERS, plans)
        if 8 * len(coded) <= size + 8:
            return coded
    return bytes([BITMAP]) + np.packbits(kept, bitorder="little").tobytes()


def decode_mask(data: memoryview, layout: Layout) -> Bools:
    """The mask in `data`, of the size `layout` says.

    Raises:
        WireError: the bytes are not a mask of that layout.
    """
    size = sum(rows * columns for rows, columns in layout)
    reader = Reader(data, "mask")
    tag = reader.byte()
    if tag in {EMPTY, FULL}:
        kept = np.full(size, tag == FULL)
    elif tag == BITMAP:
        packed = np.frombuffer(reader.take((size + 7) // 8), np.uint8)
        bits = np.unpackbits(packed, bitorder="little")
        if bits[size:].any():
            raise reader.error(f"bits set behind the end of {size} positions.")
        kept = bits[:size].view(np.bool_)
    elif tag in {FLAT, LAYERS}:
        kept = _read_tensors(reader, size, layout if tag == LAYERS else ((1, size),))
    elif tag == ROWS and layout and (inner := reader.rest())[:1] != bytes([ROWS]):
        return _spread_rows(decode_mask(inner, ((1, sum(rows for rows, _ in layout)),)), layout)
    else:
        raise reader.error(f"a coder from 0 to {ROWS} expected, found {tag}.")
    reader.finish()
    return kept


class _Plan(NamedTuple):
    """How LAYERS codes one tensor."""

    part: Bools
    bits: float  # what it takes, about
    live: Bools | None = None  # columns that are not empty; None: all are coded
    bins: Ints | None = None  # of each row; None: all rows are alike


def _plan(part: Bools) -> _Plan:
    rows, width = part.shape
    if rows == 1:
        return _Plan(part, binary_entropy(_ones(part), width) + 16)
    counts = part.view(np.uint8).sum(axis=1, dtype=np.int64)
    used, ones = _ones(counts), int(counts.sum())
    flags: Bools = np.logical_or.reduce(part, axis=0)
    flag_bits = (
        min(binary_entropy(_ones(flags), width), binary_entropy(_ones(_steps(flags)), width)) + 8
    )
    if binary_entropy(ones, used * width) - binary_entropy(ones, used * _ones(flags)) > flag_bits:
        bins, bits = _row_bins(counts, _ones(flags))
        return _Plan(part, bits + flag_bits + 8, flags, bins)
    bins, bits = _row_bins(counts, width)
    return _Plan(part, bits + 8, None, bins)


def _row_bins(counts: Ints, width: int) -> tuple[Ints | None, float]:
    """Rows in bins of like density, and the bits for all of it; None where one bin is best.

    Starts from bins even in the angle arcsin(sqrt(density)), where chance is the same size
    everywhere, and merges neighbours while that makes bins + bin numbers + bits cheaper.
    """
    rows = counts.size
    values, times = np.unique(counts, return_counts=True)
    pooled = binary_entropy(int(counts.sum()), rows * width)
    each = zip(values.tolist(), times.tolist(), strict=True)
    apart = sum(r * binary_entropy(ones, width) for ones, r in each)
    if pooled - apart <= rows + _BIN_BITS:  # chance alone makes about 0.7 bits a row
        return None, pooled + 8
    angle = np.arcsin(np.sqrt(values / width))
    inner = angle[(values > 0) & (values < width)]
    low, high = (inner[0], inner[-1]) if inner.size else (0.0, 0.0)
    first = 1 + ((angle - low) * ((_MAX_BINS - 3) / max(high - low, 1e-9))).astype(np.intp)
    first[values == 0], first[values == width] = 0, _MAX_BINS - 1
    starts = np.flatnonzero(np.diff(first, prepend=-1))
    ones = np.add.reduceat(values * times, starts).tolist()
    sizes = np.add.reduceat(times, starts).tolist()
    lasts = [*values[starts[1:] - 1].tolist(), int(values[-1])]

    def bits(ones: int, size: int) -> float:
        return binary_entropy(ones, size * width) + size * math.log2(rows / size) + _BIN_BITS

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


def _tensors(tag: int, plans: list[_Plan]) -> bytes:
    """Head: of each tensor number of bins and flags, level of columns, size and level of bins."""
    head, ans = bytearray([tag]), AnsWriter()
    for part, _, live, bins in plans:
        sizes = [part.shape[0]] if bins is None else np.bincount(bins).tolist()
        head.append(len(sizes) - 1)
        block = part
        if live is not None:
            steps = _steps(live)
            few = binary_entropy(_ones(steps), live.size) < binary_entropy(_ones(live), live.size)
            head[-1] |= _COLUMNS | few * _STEPS
            head.append(ans.bits(steps if few else live))
            block = part[:, live]
        if bins is not None:
            ans.symbols(bins, tuple(sizes))
            block = block[np.argsort(bins, kind="stable")]
        head += b"".join(map(count_bytes, sizes[:-1]))  # the last one is what is left
        pieces = runs_of(block, sizes)
        head += bytes(ans.bits(piece.reshape(-1)) for piece in pieces)
    return bytes(head) + ans.finish()


def _read_tensors(reader: Reader, size: int, layout: Layout) -> Bools:
    kept = np.zeros(size, np.bool_)
    parts = list(matrices(kept, layout))
    heads = [_read_head(reader, part.shape[0]) for part in parts]
    ans = AnsReader(reader.rest(), "mask")
    for part, (flags, columns, sizes, levels) in zip(parts, heads, strict=True):
        rows, width = part.shape
        live: Bools | slice = slice(None)
        if flags & _COLUMNS:
            live = ans.bits(width, columns)
            if flags & _STEPS:
                live = np.logical_xor.accumulate(live)
            width = _ones(live)
        if len(levels) == 1:
            part[:, live] = ans.bits(rows * width, levels[0]).reshape(rows, width)
            continue
        bins = ans.small_symbols(rows, sizes)
        step = min(_AT_ONCE, -(-rows // 2))  # some rows at a time: a place takes eight bytes
        for number, level in enumerate(levels):
            packed, at = ans.packed_bits(_ones(bins == number) * width, level), 0
            for start in range(0, rows, step):
                alike = start + np.flatnonzero(bins[start : start + step] == number)
                end = at + alike.size * width
                block = bit_range(packed, at, end).view(np.bool_).reshape(alike.size, width)
                if isinstance(live, slice):
                    part[alike] = block
                else:
                    _put(part, alike, live, block)
                at = end
    ans.finish()
    return kept


def _put(part: Bools, rows: Ints, live: Bools, block: Bools) -> None:
    """Write a block into some rows and columns, a few rows at a time."""
    columns, step = np.flatnonzero(live), 1 + _AT_ONCE // live.size
    for start in range(0, rows.size, step):
        some = rows[start : start + step]
        whole = np.zeros((some.size, live.size), np.bool_)
        whole[:, columns] = block[start : start + step]
        part[some] = whole


def _read_head(reader: Reader, rows: int) -> tuple[int, int, tuple[int, ...], bytes]:
    """Flags, level of the columns, sizes and levels of the bins of one tensor."""
    flags = reader.byte()
    if flags & 128 or flags & (_COLUMNS | _STEPS) == _STEPS:
        raise reader.error(f"unknown flags {flags:#x} of a tensor.")
    columns = reader.byte() if flags & _COLUMNS else 0
    num_bins = 1 + flags % _MAX_BINS
    sizes = [reader.count(rows) for _ in range(num_bins - 1)]
    if sum(sizes) > rows:
        raise reader.error(f"{rows} rows expected in all bins, found {sum(sizes)}.")
    return flags, columns, (*sizes, rows - sum(sizes)), bytes(reader.take(num_bins))


def matrices(flat: Bools, layout: Layout) -> Iterator[Bools]:
    """Each tensor that has elements, as a matrix; a lone column lies flat: it has no rows."""
    start = 0
    for rows, columns in layout:
        size = rows * columns
        if size:
            shape = (1, rows) if columns == 1 else (rows, columns)
            yield flat[start : start + size].reshape(shape)
        start += size


def _spread_rows(whole: Bools, layout: Layout) -> Bools:
    """The mask whose rows are kept or dropped whole, from one flag a row."""
    kept = np.empty(sum(rows * columns for rows, columns in layout), np.bool_)
    row = start = 0
    for rows, columns in layout:
        part = kept[start : start + rows * columns].reshape(rows, columns)
        part[:] = whole[row : row + rows, None]
        row, start = row + rows, start + rows * columns
    return kept


def _whole_rows(kept: Bools, layout: Layout) -> Bools | None:
    """One flag a row where every row is kept or dropped whole, and it pays to say so."""
    if all(columns < 2 for _, columns in layout):
        return None
    matrices, start = [], 0
    for rows, columns in layout:
        matrices.append(kept[start : start + rows * columns].reshape(rows, columns))
        start += rows * columns
    if not all(m.shape[1] and (m[:, 0] == m[:, m.shape[1] // 2]).all() for m in matrices):
        return None  # almost every mask that is not of this kind
    if not all((m == m[:, :1]).all() for m in matrices):
        return None
    return np.concatenate([m[:, 0] for m in matrices])


def _ones(bits: NDArray[Any]) -> int:
    return int(np.count_nonzero(bits))


def _steps(flags: Bools) -> Bools:
    """Where a flag differs from the one before it, the first from unset."""
    return flags ^ np.concatenate(([False], flags[:-1]))
