"""What server and client both hold, by hash: masks, versions of values, changes; bounded.

What is forgotten costs only bytes: the next message carries it whole.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.codec import Recall
from fedsieve.wire.schema import Hash
from fedsieve.wire.versions import CHANGES, VERSIONS

LIMIT_BYTES = 64_000_000


class Packed(NamedTuple):
    """A mask, eight positions a byte, or float32 values; `size` is in bits."""

    bits: bytes
    size: int


MaskTable: TypeAlias = dict[Hash, Packed]  # oldest first


def remember(table: MaskTable, masks: Recall) -> MaskTable:
    """The table with `masks` as its newest entries, the oldest dropped beyond the limit."""
    after = {digest: packed for digest, packed in table.items() if digest not in masks}
    for digest, flat in masks.items():
        packed = table.get(digest) or _packed(digest, flat)
        after[digest] = packed
    excess = sum(len(p.bits) for p in after.values()) - LIMIT_BYTES
    while excess > 0:
        oldest = next(iter(after))
        excess -= len(after.pop(oldest).bits)
    return after


def subset(table: MaskTable, digests: Iterable[Hash]) -> MaskTable:
    """Those of the named masks that are still in the table."""
    return {digest: table[digest] for digest in digests if digest in table}


def recall(table: MaskTable, digests: Iterable[Hash]) -> dict[Hash, NDArray[Any]]:
    """Those of the named masks and versions that are still in the table, as arrays."""
    return unpacked(subset(table, digests))


def unpacked(masks: Mapping[Hash, Packed | None]) -> dict[Hash, NDArray[Any]]:
    """Booleans and floats; those that are only named are left out."""
    return {
        digest: _array(digest, packed) for digest, packed in masks.items() if packed is not None
    }


def last_version(table: MaskTable) -> NDArray[np.float32] | None:
    """The values of the last broadcast that were rounded, if any were."""
    for digest in reversed(table):
        if VERSIONS <= digest < CHANGES:
            return _array(digest, table[digest])
    return None


def _packed(digest: Hash, flat: NDArray[Any]) -> Packed:
    if digest >= VERSIONS:
        return Packed(flat.astype("<f4").tobytes(), 32 * flat.size)
    return Packed(np.packbits(flat).tobytes(), flat.size)


def _array(digest: Hash, packed: Packed) -> NDArray[Any]:
    if digest >= VERSIONS:
        return np.frombuffer(packed.bits, "<f4").astype(np.float32)
    flat = np.unpackbits(np.frombuffer(packed.bits, np.uint8), count=packed.size)
    return flat.view(np.bool_)
