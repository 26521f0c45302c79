"""Masks coded by what both ends know of each bit: how likely it was in the message answered.

Probabilities fall into bins, and each bin that has bits is coded with its own density, which
travels as one byte. Equal probabilities make equal bins on every machine: edges are whole numbers
of 1/4096, and multiplying a float by 4096 is exact. Bins are even in the angle
arcsin(sqrt(probability)), so that bits of one bin cost the same number of bits, but for 0.001 each.
Bits that are drawn (`drawn`) have eight bins for each of these, with edges in 2**-24.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsieve.core.message import Bit, Drawn, fields
from fedsieve.wire.bits import Bools, Ints, Reader, bit_range
from fedsieve.wire.entropy import AnsReader, AnsWriter
from fedsieve.wire.masks import LIKELY

BINS: Final = 32
FINE_BINS: Final = 256
_BLOCK: Final = 1 << 14


def _edges(scale: int, bins: int) -> Ints:
    return np.array(
        [round(scale * math.sin(math.pi * k / (2 * bins)) ** 2) for k in range(1, bins)]
    )


_SCALE, _FINE_SCALE = 1 << 12, 1 << 24
_EDGES, _FINE_EDGES = _edges(_SCALE, BINS), _edges(_FINE_SCALE, FINE_BINS)
Bins: TypeAlias = NDArray[np.uint8]
Contexts: TypeAlias = Mapping[str, Mapping[str, Bins]]  # by field and tensor


def contexts_of(kind: type, given: Any) -> Contexts:
    """The bins of every bit in a reply of class `kind` to the message `given`.

    Raises:
        TypeError: the message does not have the field that `Bit` or `Drawn(given=...)` names.
    """
    contexts = {}
    for field, role in given_fields(kind):
        likely = getattr(given, role.given or "", None)
        if not isinstance(likely, dict):
            raise TypeError(
                f"{kind.__qualname__}.{field} is {role!r}, but "
                f"{type(given).__qualname__} has no field of tensors with that name."
            )
        is_fine = isinstance(role, Drawn)
        scaled = (_FINE_EDGES, _FINE_SCALE) if is_fine else (_EDGES, _SCALE)
        contexts[field] = {name: _bins(value, *scaled) for name, value in likely.items()}
    return contexts


def given_fields(kind: type) -> list[tuple[str, Bit | Drawn]]:
    """The fields of a reply whose bits the broadcast says something of."""
    return [(n, r) for n, r in fields(kind) if isinstance(r, Bit | Drawn) and r.given]


def _bins(likely: Tensor, edges: Ints, scale: int) -> Bins:
    return np.searchsorted(edges, scale * likely.detach().numpy().reshape(-1), "right").astype(
        np.uint8
    )


def encode_likely(kept: Bools, bins: Sequence[Bins]) -> bytes:
    """A mask whose bits are alike within each bin: densities of bins, then an ANS stream."""
    head, ans, flat = bytearray([LIKELY]), AnsWriter(), np.concatenate(bins)
    ends = np.cumsum(np.bincount(flat, minlength=BINS))
    for part in np.split(kept[np.argsort(flat, kind="stable")], ends[:-1]):
        if part.size:
            head.append(ans.bits(part))
    return bytes(head) + ans.finish()


def decode_likely(data: memoryview, bins: Sequence[Bins]) -> Bools:
    """The mask that `encode_likely` was given, from the same bins, here tensor by tensor.

    Raises:
        WireError: the bytes are not a mask in such bins.
    """
    reader = Reader(data, "mask")
    if reader.byte() != LIKELY:
        raise reader.error(f"coder {LIKELY} expected.")
    sizes = [0] * BINS
    for _, block in _blocks(bins):
        sizes = [a + b for a, b in zip(sizes, np.bincount(block, minlength=BINS), strict=True)]
    levels = [reader.byte() if size else 0 for size in sizes]
    ans, kept = AnsReader(reader.rest(), "mask"), np.empty(sum(sizes), np.bool_)
    for number, (size, level) in enumerate(zip(sizes, levels, strict=True)):
        packed, at = ans.packed_bits(size, level), 0
        for start, block in _blocks(bins) if size else ():
            places = start + np.flatnonzero(block == number)
            bits = bit_range(packed, at, at + places.size)
            kept[places], at = bits.view(np.bool_), at + places.size
    ans.finish()
    return kept


def _blocks(bins: Sequence[Bins]) -> Iterator[tuple[int, Bins]]:
    """Some bins at a time with the number of those before: numpy makes 8 bytes of each."""
    first = 0
    for tensor in bins:
        for start in range(0, tensor.size, _BLOCK):
            yield first + start, tensor[start : start + _BLOCK]
        first += tensor.size
