"""Values as bytes, lossless: mantissas are noise and stay raw, magnitudes are entropy-coded.

Kinds are float32 ("f4"), bfloat16 and float16 as 16-bit patterns ("bf", "f2") and int8 ("i1"). An
array is cut into chunks, each coded by itself; a chunk's first byte says how:

    RAW                    the bytes as they are (like all here, of a little-endian machine)
    FINE, COARSE           upper halves by magnitude, then lower halves raw (halves.py)
    SPARSE                 where values are not zero, as a mask, then those values as another chunk
    HOLES                  the same with fewer zeros: the mask is packed and coded by zstd, faster
    ZSTD, CELLS, SYMBOLS   int8 (symbols.py)

Values that are not zero are gathered in their order. Where nearly all are, or nearly none, fewer
have to be moved: the first ones stay where they are, and those from the end fill the gaps between.
"""

from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import Bools, Ints, Pieces, Reader, count_bytes, set_places, size_of
from fedsieve.wire.entropy import compress, decompress
from fedsieve.wire.halves import COARSE, FINE, decode_halves, encode_halves
from fedsieve.wire.masks import decode_mask, encode_mask
from fedsieve.wire.symbols import decode_symbols, encode_symbols

Kind: TypeAlias = Literal["f4", "bf", "f2", "i1"]
Array: TypeAlias = NDArray[Any]

RAW, SPARSE, HOLES = 0, 3, 7
TYPES: Final = {"f4": np.float32, "bf": np.uint16, "f2": np.uint16, "i1": np.int8}
CHUNK: Final = {"f4": 1 << 17, "bf": 1 << 17, "f2": 1 << 17, "i1": 1 << 20}  # fits the cache
_SMALL: Final = 8192  # values; below, FINE and COARSE are both tried


def encode_values(values: Array, kind: Kind = "f4") -> Pieces:
    """A one-dimensional array of TYPES[kind] as pieces to be joined; an empty one has none."""
    expected, given = (np.dtype(TYPES[kind]), 1), (values.dtype, values.ndim)
    if expected != given:
        raise WireError(f"values: type and dimensions {expected} expected, found {given}.")
    values = np.ascontiguousarray(values)
    pieces: Pieces = []
    for start in range(0, values.size, CHUNK[kind]):
        chunk = values[start : start + CHUNK[kind]]
        coded: Pieces
        if kind == "i1":
            coded = [*encode_symbols(chunk, is_last=start + chunk.size == values.size)]
        else:
            coded = _encode_floats(chunk, kind)
        is_shorter = size_of(coded) < 1 + chunk.nbytes
        pieces += coded if is_shorter else [bytes([RAW]), chunk.view(np.uint8).data]
    return pieces


def decode_values(data: memoryview, count: int, kind: Kind = "f4") -> Array:
    """The `count` values in `data`.

    Raises:
        WireError: the bytes are not that many values of that kind.
    """
    reader = Reader(data, f"values of kind {kind!r}")
    values = np.empty(count, TYPES[kind])
    for start in range(0, count, CHUNK[kind]):
        chunk = values[start : start + CHUNK[kind]]
        tag = reader.byte()
        if tag == RAW:
            _read_raw(reader, chunk)
        elif kind == "i1":
            decode_symbols(reader, tag, chunk, is_last=start + chunk.size == count)
        else:
            _decode_floats(reader, tag, chunk)
    reader.finish()
    return values


def _encode_floats(values: Array, kind: Kind) -> Pieces:
    """A chunk as FINE, COARSE or SPARSE, whichever is shortest, about."""
    bits = values.view(f"u{values.itemsize}")
    kept = bits != 0
    count = int(np.count_nonzero(kept))
    if 32 * count <= 31 * bits.size:
        is_holed = 8 * count >= bits.size
        mask = compress(np.packbits(kept)) if is_holed else encode_mask(kept, ((1, kept.size),))
        head = bytes([HOLES if is_holed else SPARSE]) + count_bytes(len(mask))
        return [head, mask, *encode_values(_gathered(bits, kept, count).view(values.dtype), kind)]
    high, low = bits, bits[:0].data
    if kind == "f4":
        halves = bits.view(np.uint16)
        high, low = halves[1::2].copy(), halves[::2].copy().data
    fine = [] if kind == "f2" else encode_halves(FINE, high)
    if not fine or values.size < _SMALL:
        coarse = encode_halves(COARSE, high)
        fine = coarse if not fine or size_of(coarse) < size_of(fine) else fine
    return [*fine, low]


def _decode_floats(reader: Reader, tag: int, values: Array, *, is_inner: bool = False) -> None:
    """Fill `values` with a chunk of coder `tag`; `is_inner` where zeros have been left out."""
    bits = values.view(f"u{values.itemsize}")
    if tag in {FINE, COARSE}:
        decode_halves(reader, tag, bits)
    elif tag == RAW:
        _read_raw(reader, values)
    elif tag in {SPARSE, HOLES} and not is_inner:
        kept = _read_kept(reader, tag, values.size)
        others = values[: np.count_nonzero(kept)]
        if others.size:
            _decode_floats(reader, reader.byte(), others, is_inner=True)
        _scatter(bits, kept, others.size)
    else:
        coders = [RAW, FINE, COARSE, *(() if is_inner else (SPARSE, HOLES))]
        raise reader.error(f"one of the coders {coders} expected, found {tag}.")


def _read_kept(reader: Reader, tag: int, count: int) -> Bools:
    size = reader.count(len(reader))
    if tag == SPARSE:
        return decode_mask(reader.take(size), ((1, count),))
    return np.unpackbits(decompress(reader, size, (count + 7) // 8), count=count).view(np.bool_)


def _read_raw(reader: Reader, values: Array) -> None:
    values.view(np.uint8)[:] = np.frombuffer(reader.take(values.nbytes), np.uint8)


def _is_lopsided(size: int, count: int) -> bool:
    return 8 * min(count, size - count) <= size


def _width(size: int) -> int:
    """Positions looked at together: few of a small array, since a place takes eight bytes."""
    return min(max(size >> 3, 1 << 10), 1 << 14)


def _index(kept: Bools) -> Bools | Ints:
    """What selects the positions kept fastest: themselves where they come in runs, or places."""
    changes = np.count_nonzero(kept[1:] != kept[:-1])
    return kept if 8 * changes < kept.size else np.flatnonzero(kept)


def _gathered(bits: Array, kept: Bools, total: int) -> Array:
    """The `total` values kept."""
    if _is_lopsided(bits.size, total):
        gathered = bits[:total].copy()
        gathered[set_places(~kept[:total])] = bits[total:][set_places(kept[total:])]
        return gathered
    gathered, at, width = np.empty(total, bits.dtype), 0, _width(bits.size)
    for start in range(0, bits.size, width):
        block = bits[start : start + width][_index(kept[start : start + width])]
        gathered[at : at + block.size] = block
        at += block.size
    return gathered


def _scatter(bits: Array, kept: Bools, total: int) -> None:
    """Move the first `total` values, as they were gathered, where they belong; zeros elsewhere."""
    if _is_lopsided(bits.size, total):
        bits[total:] = 0
        gaps = set_places(~kept[:total])
        moved = bits[gaps]
        bits[gaps] = 0
        del gaps
        bits[total:][set_places(kept[total:])] = moved
        return
    at, width = total, _width(bits.size)
    for start in reversed(range(0, bits.size, width)):  # nothing is written over before it is read
        block, is_kept = bits[start : start + width], kept[start : start + width]
        count = int(np.count_nonzero(is_kept))
        at -= count
        moved = bits[at : at + count].copy()
        block[:] = 0
        block[_index(is_kept)] = moved
