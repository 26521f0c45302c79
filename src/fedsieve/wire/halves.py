"""Upper halves of floats: sign, exponent and leading mantissa bits.

One byte a value, coded by zstd, says how far exponent and leading mantissa bits lie below the
largest ones; the other bits are packed as they are.

    FINE    4 mantissa bits in that byte (top-k selection skews them); values more than 254 steps
            below the largest are listed apart
    COARSE  none (float16: 3), so that 8 bits reach every exponent
"""

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Pieces, Reader, count_bytes
from fedsieve.wire.entropy import compress, decompress

FINE, COARSE = 1, 2
Halves: TypeAlias = NDArray[np.uint16]
_SHIFT: Final = {FINE: 3, COARSE: 7}
_FAR: Final = 255  # the symbol of a value in FINE's list
_FAR_SHARE: Final = 64  # at most one of so many is in the list
_BLOCK: Final = 1 << 13  # values decoded together: fits the cache, and bounds what is taken at once


def encode_halves(tag: int, high: Halves) -> Pieces:
    """Top step, sizes, coded steps, far steps, other bits; [] if FINE does not suit."""
    steps = high & 0x7FFF
    np.right_shift(steps, _SHIFT[tag], out=steps)
    top, bottom = steps.max(), steps.min()
    np.subtract(top, steps, out=steps)
    far = steps[:0]
    if top - bottom >= _FAR and tag == FINE:
        places = np.flatnonzero(steps >= _FAR)
        if _FAR_SHARE * places.size > steps.size:
            return []
        far = top - steps[places]
        steps[places] = _FAR
    coded = compress(steps.astype(np.uint8))
    head = bytes([tag, *int(top).to_bytes(2, "little")])
    sizes = count_bytes(len(coded)) + count_bytes(far.size)
    return [head, sizes, coded, far.tobytes(), _pack(tag, high).data]


def decode_halves(reader: Reader, tag: int, bits: NDArray[Any]) -> None:
    """Fill the upper halves of `bits` (float32: and the lower ones, which stand behind)."""
    count, shift = bits.size, _SHIFT[tag]
    top = np.uint16(int.from_bytes(reader.take(2), "little"))
    size = reader.count(len(reader))
    num_far = reader.count(count // _FAR_SHARE if tag == FINE else 0)
    symbols = decompress(reader, size, count)
    is_far = symbols == _FAR if tag == FINE else symbols[:0]
    if np.count_nonzero(is_far) != num_far:
        raise reader.error(f"{np.count_nonzero(is_far)} far steps expected, found {num_far}.")
    places = np.flatnonzero(is_far)
    del is_far
    far = np.frombuffer(reader.take(2 * num_far), np.uint16)
    each = 2 if tag == FINE else 1  # values whose other bits share a byte
    packed = np.frombuffer(reader.take(-(-count // each)), np.uint8)
    low = np.frombuffer(reader.take(2 * count if bits.itemsize == 4 else 0), np.uint16)
    for start in range(0, count, _BLOCK):
        block = bits[start : start + _BLOCK]
        high = symbols[start : start + _BLOCK].astype(np.uint16)
        np.subtract(top, high, out=high)
        np.left_shift(high, shift, out=high)
        others = packed[start // each : (start + _BLOCK) // each]
        np.bitwise_or(high, _unpack(tag, others)[: block.size], out=high)
        np.copyto(block, high)
        if low.size:
            np.left_shift(block, 16, out=block)
            block.view(np.uint16)[::2] = low[start : start + _BLOCK]
    if places.size:
        raised = 16 if low.size else 0
        others = bits[places] & ~bits.dtype.type(0x7FF8 << raised)
        bits[places] = others | far.astype(bits.dtype) << (shift + raised)


# FINE: sign and three lowest bits of two halves, s............210 twice, to and from one byte.
_SPREAD: Final = np.uint32(0x01001001)
_TWICE: Final = np.uint32(0x80078007)


def _pack(tag: int, high: Halves) -> NDArray[np.uint8]:
    """What the steps leave of the upper halves; COARSE: sign and seven lowest bits."""
    if tag == COARSE:
        return (high & 0x7F | high >> 8 & 0x80).astype(np.uint8)
    kept = high & np.uint16(_TWICE & 0xFFFF)
    pairs = (np.pad(kept, (0, 1)) if kept.size % 2 else kept).view(np.uint32)
    np.multiply(pairs, _SPREAD, out=pairs)
    return np.right_shift(pairs, 24, out=pairs).astype(np.uint8)


def _unpack(tag: int, packed: NDArray[np.uint8]) -> Halves:
    if tag == COARSE:
        wide = packed.astype(np.uint16)
        np.multiply(wide, np.uint16(0x0101), out=wide)
        return np.bitwise_and(wide, 0x807F, out=wide)
    pairs = packed.astype(np.uint32)
    np.multiply(pairs, _SPREAD, out=pairs)
    return np.bitwise_and(pairs, _TWICE, out=pairs).view(np.uint16)
