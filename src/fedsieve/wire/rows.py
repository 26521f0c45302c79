"""Rows of a mask in bins of like density."""

import math
from typing import Final

import numpy as np

from fedsieve.wire.bits import Ints

MAX_BINS: Final = 32
_BIN_BITS: Final = 20  # header of one bin of rows: its size and its level


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
