"""What turns a mask the receiver holds into another one.

Lost places are counted among those kept before, grown ones among the others. Nothing at all stands
for no change; else the first byte says how it is coded:

    ANEW          the new mask by itself
    FLAT, LAYERS  ANS, two densities (lost, grown) for all positions or for each tensor
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Bools, Reader, unpack
from fedsieve.wire.entropy import AnsReader, AnsWriter, binary_entropy, density_level
from fedsieve.wire.masks import FLAT, LAYERS, Layout, decode_mask, encode_mask, matrices

ANEW: Final = 0
_BLOCK: Final = 1 << 12  # bytes looked up together


def encode_change(kept: Bools, before: Bools, layout: Layout) -> bytes:
    """What turns the mask `before`, which the receiver holds, into `kept`."""
    changed = kept != before
    lost, old, grown, new = total = _counts(before, changed)
    if not lost + grown:
        return b""
    tensors = list(zip(matrices(before, layout), matrices(changed, layout), strict=True))
    counts = [_counts(*pair) for pair in tensors]
    is_flat = _bits(total) <= sum(_bits(count) + 16 for count in counts)
    flat = FLAT, [(before.reshape(1, -1), changed.reshape(1, -1))], [total]
    coded = _contexts(*(flat if is_flat else (LAYERS, tensors, counts)))
    if 4 * (lost + grown) > old or 8 * len(coded) > old + new:
        return min(coded, bytes([ANEW]) + encode_mask(kept, layout), key=len)
    return coded


def decode_change(data: memoryview, before: Bools, layout: Layout) -> Bools:
    """The mask that `encode_change` was given, from the same `before`.

    Raises:
        WireError: the bytes are not a change of such a mask.
    """
    if not len(data):
        return before.copy()
    reader = Reader(data, "mask change")
    tag = reader.byte()
    if tag == ANEW:
        return decode_mask(reader.rest(), layout)
    if tag not in {FLAT, LAYERS}:
        raise reader.error(f"one of {[ANEW, FLAT, LAYERS]} expected, found {tag}.")
    layout = layout if tag == LAYERS else ((1, before.size),)
    kept = np.empty(before.size, np.bool_)
    parts = list(zip(matrices(before, layout), matrices(kept, layout), strict=True))
    levels = [(reader.byte(), reader.byte()) for _ in parts]
    ans = AnsReader(reader.rest(), "mask change")
    for (old, new), (lost, grown) in zip(parts, levels, strict=True):
        unpack(_read_contexts(ans, np.packbits(old), lost, grown), new.reshape(-1))
    ans.finish()
    return kept


def _counts(before: Bools, changed: Bools) -> tuple[int, ...]:
    """Positions lost and all that were kept, positions grown and all that were not."""
    old, flips = int(np.count_nonzero(before)), int(np.count_nonzero(changed))
    lost = int(np.count_nonzero(before & changed))
    return lost, old, flips - lost, before.size - old


def _bits(counts: tuple[int, ...]) -> float:
    lost, old, grown, new = counts
    return binary_entropy(lost, old) + binary_entropy(grown, new)


def _contexts(tag: int, pairs: list[tuple[Bools, Bools]], counts: list[tuple[int, ...]]) -> bytes:
    """Changes as bytes sorted so that positions kept before come lowest, by how many those are."""
    head, ans = bytearray([tag]), AnsWriter()
    for (before, changed), (lost, old_size, grown, new_size) in zip(pairs, counts, strict=True):
        levels = density_level(lost, old_size), density_level(grown, new_size)
        head += bytes(levels)
        old = np.packbits(before)
        splits = np.bitwise_count(old)
        symbols = _sorters()[0].take(old.astype(np.uint16) << 8 | np.packbits(changed))
        symbols = symbols[np.argsort(splits, kind="stable")]
        ends = np.cumsum(np.bincount(splits, minlength=9))
        for split, block in enumerate(np.split(symbols, ends[:-1])):
            ans.packed(block, split, *levels)
    return bytes(head) + ans.finish()


def _read_contexts(
    ans: AnsReader, old: NDArray[np.uint8], lost: int, grown: int
) -> NDArray[np.uint8]:
    """The new mask, packed, from the old one."""
    splits = np.bitwise_count(old)
    sizes = [int(np.count_nonzero(splits == split)) for split in range(9)]
    streams = [ans.packed(size, split, lost, grown) for split, size in enumerate(sizes)]
    new = old.copy()
    for start in range(0, old.size, _BLOCK):  # numpy makes 8 bytes of each index
        block, split = new[start : start + _BLOCK], splits[start : start + _BLOCK]
        counts = np.bincount(split, minlength=9).tolist()
        taken = np.concatenate([s[:count] for s, count in zip(streams, counts, strict=True)])
        streams = [s[count:] for s, count in zip(streams, counts, strict=True)]
        if taken.any():
            symbols = np.empty_like(block)
            symbols[np.argsort(split, kind="stable")] = taken
            block ^= _sorters()[1].take(block.astype(np.uint16) << 8 | symbols)
    return new


@lru_cache(maxsize=1)
def _sorters() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Tables at 256 * old + byte: its bits sorted, those set in `old` lowest; and the inverse."""
    numbers, order = np.arange(256, dtype=np.uint8), np.arange(8, dtype=np.uint8)
    is_new = ~numbers[:, None] >> order & 1
    places = np.argsort(is_new, axis=1, kind="stable").astype(np.uint8)
    bits = numbers[None, :, None] >> places[:, None] & 1
    ordered = (bits << order).sum(axis=2, dtype=np.uint8)
    return ordered.reshape(-1), np.argsort(ordered, axis=1).astype(np.uint8).reshape(-1)
