"""Masks that server and client both hold, by hash: packed, shared by all clients, bounded.

A forgotten mask costs only bytes: the next message carries it whole.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from fedsieve.wire.codec import Bools
from fedsieve.wire.schema import Hash

LIMIT_BYTES = 64_000_000


class Packed(NamedTuple):
    """A mask, eight positions a byte."""

    bits: bytes
    size: int


MaskTable: TypeAlias = dict[Hash, Packed]  # oldest first


def remember(table: MaskTable, masks: dict[Hash, Bools]) -> MaskTable:
    """The table with `masks` as its newest entries, the oldest dropped beyond the limit."""
    after = {mark: packed for mark, packed in table.items() if mark not in masks}
    for mark, flat in masks.items():
        packed = table.get(mark) or Packed(np.packbits(flat).tobytes(), flat.size)
        after[mark] = packed
    excess = sum(len(p.bits) for p in after.values()) - LIMIT_BYTES
    while excess > 0:
        oldest = next(iter(after))
        excess -= len(after.pop(oldest).bits)
    return after


def subset(table: MaskTable, marks: Iterable[Hash]) -> MaskTable:
    """Those of the named masks that are still in the table."""
    return {mark: table[mark] for mark in marks if mark in table}


def recall(table: MaskTable, marks: Iterable[Hash]) -> dict[Hash, Bools]:
    """The same masks as booleans."""
    return unpacked(subset(table, marks))


def unpacked(masks: Mapping[Hash, Packed | None]) -> dict[Hash, Bools]:
    """Masks as booleans; those that are only named are left out."""
    return {mark: _bools(packed) for mark, packed in masks.items() if packed is not None}


def _bools(packed: Packed) -> Bools:
    flat = np.unpackbits(np.frombuffer(packed.bits, np.uint8), count=packed.size)
    return flat.view(np.bool_)
