"""Values as bytes, lossless: mantissas are noise and stay raw, magnitudes are entropy-coded.

Kinds are float32 ("f4"), bfloat16 and float16 as 16-bit patterns ("bf", "f2") and int8 ("i1"). An
array is cut into chunks, each coded by itself; a chunk's first byte says how:

    RAW            the bytes as they are (like all here, of a little-endian machine)
    FINE, COARSE   one byte a value: how far exponent and leading mantissa bits lie below the
                   largest ones, coded by zstd's literal stage; sign and other bits raw
    SPARSE         where values are not zero, as a mask, then those values as another chunk
    ZSTD           int8 symbols by zstd
    CELLS, SYMBOLS int8 symbols by ANS, with one level for symbols of like size, or for each

FINE has 4 mantissa bits in its byte (top-k selection skews them) and lists values more than 254
steps below the largest apart. COARSE has none (f2: 3), so that 8 bits reach every exponent.
"""

import sys
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import AnsReader, AnsWriter, Reader, count_bytes, has_ans, level_of
from fedsieve.wire.masks import decode_mask, encode_mask

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Kind: TypeAlias = Literal["f4", "bf", "f2", "i1"]
Array: TypeAlias = NDArray[Any]
Pieces: TypeAlias = list[bytes | memoryview]
Halves: TypeAlias = NDArray[np.uint16]

RAW, FINE, COARSE, SPARSE, ZSTD, CELLS, SYMBOLS = range(7)
TYPES: Final = {"f4": np.float32, "bf": np.uint16, "f2": np.uint16, "i1": np.int8}
CHUNK: Final = {"f4": 1 << 17, "bf": 1 << 17, "f2": 1 << 17, "i1": 1 << 20}  # fits the cache
_SMALL: Final = 8192  # values; below, FINE and COARSE are both tried
_FAR: Final = 255  # the symbol of a value in FINE's list

_Parameter = zstd.CompressionParameter
_LITERALS: Final[dict[int, int]] = {  # matches are noise here: look for as few as possible
    _Parameter.compression_level: 1,
    _Parameter.strategy: int(zstd.Strategy.fast),
    _Parameter.min_match: 7,
    _Parameter.hash_log: 6,
    _Parameter.window_log: 17,
}
_compressor: Final = zstd.ZstdCompressor(options=_LITERALS)  # making one takes as long as using it
_WINDOW: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 17}


def encode_values(values: Array, kind: Kind = "f4") -> bytes:
    """A one-dimensional array of TYPES[kind] as bytes; an empty one takes none."""
    return b"".join(_pieces(values, kind))


def _pieces(values: Array, kind: Kind) -> Pieces:
    expected, found = (np.dtype(TYPES[kind]), 1), (values.dtype, values.ndim)
    if expected != found:
        raise WireError(f"values: type and dimensions {expected} expected, found {found}.")
    values = np.ascontiguousarray(values)
    pieces: Pieces = []
    for start in range(0, values.size, CHUNK[kind]):
        chunk = values[start : start + CHUNK[kind]]
        if kind == "i1":
            coded = _encode_symbols(chunk, is_last=start + chunk.size == values.size)
        else:
            coded = _encode_floats(chunk, kind)
        is_shorter = _size(coded) < 1 + chunk.nbytes
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
        if kind == "i1":
            _decode_symbols(reader, chunk, is_last=start + chunk.size == count)
        else:
            _decode_floats(reader, chunk, kind)
    reader.finish()
    return values


def _encode_floats(values: Array, kind: Kind) -> Pieces:
    """A chunk as FINE, COARSE or SPARSE, whichever is shortest, about."""
    bits = values.view(f"u{values.itemsize}")
    if 32 * np.count_nonzero(bits) <= 31 * bits.size:
        kept = bits != 0
        mask = encode_mask(kept, ((1, kept.size),))
        others = bits.take(np.flatnonzero(kept)).view(values.dtype)
        return [bytes([SPARSE]), count_bytes(len(mask)), mask, *_pieces(others, kind)]
    high, low = bits, bits[:0].data
    if kind == "f4":
        high, low = np.right_shift(bits, 16).astype(np.uint16), bits.astype(np.uint16).data
    fine = [] if kind == "f2" else _encode_halves(FINE, high)
    if not fine or values.size < _SMALL:
        coarse = _encode_halves(COARSE, high)
        fine = coarse if not fine or _size(coarse) < _size(fine) else fine
    return [*fine, low]


def _encode_halves(tag: int, high: Halves) -> Pieces:
    """Upper halves as top step, sizes, coded steps, far steps, other bits; [] if FINE suits not."""
    shift = 3 if tag == FINE else 7
    steps = high & 0x7FFF
    np.right_shift(steps, shift, out=steps)
    top, bottom = steps.max(), steps.min()
    np.subtract(top, steps, out=steps)
    far = steps[:0]
    if top - bottom >= _FAR and tag == FINE:
        places = np.flatnonzero(steps >= _FAR)
        if 64 * places.size > steps.size:
            return []
        far = top - steps[places]
        steps[places] = _FAR
    coded = _compressed(steps.astype(np.uint8))
    head = bytes([tag, *int(top).to_bytes(2, "little")])
    sizes = count_bytes(len(coded)) + count_bytes(far.size)
    return [head, sizes, coded, far.tobytes(), _pack(tag, high).data]


def _decode_floats(reader: Reader, values: Array, kind: Kind, last: int = SPARSE) -> None:
    """Fill `values` with the next chunk, of a coder up to `last`."""
    bits = values.view(f"u{values.itemsize}")
    tag = reader.byte()
    if tag == RAW:
        values.view(np.uint8)[:] = np.frombuffer(reader.take(values.nbytes), np.uint8)
    elif tag == SPARSE <= last:
        mask = reader.take(reader.count(len(reader)))
        places = np.flatnonzero(decode_mask(mask, ((1, values.size),)))
        others = np.empty(places.size, values.dtype)
        if others.size:
            _decode_floats(reader, others, kind, COARSE)
        bits[:] = 0
        bits[places] = others.view(bits.dtype)
    elif tag in {FINE, COARSE}:
        high = _decode_halves(reader, tag, values.size)
        if kind != "f4":
            bits[:] = high
            return
        np.copyto(bits, high)
        np.left_shift(bits, 16, out=bits)
        low = np.frombuffer(reader.take(2 * values.size), np.uint16)
        np.bitwise_or(bits, low, out=bits)
    else:
        raise reader.error(f"a coder from 0 to {last} expected, found {tag}.")


def _decode_halves(reader: Reader, tag: int, count: int) -> Halves:
    top = int.from_bytes(reader.take(2), "little")
    size = reader.count(len(reader))
    num_far = reader.count(count if tag == FINE else 0)
    symbols = _decompress(reader, size, count)
    high = np.subtract(np.uint16(top), symbols, dtype=np.uint16)
    if tag == FINE:
        places = np.flatnonzero(symbols == _FAR)
        if places.size != num_far:
            raise reader.error(f"{places.size} far steps expected, found {num_far}.")
        high[places] = np.frombuffer(reader.take(2 * num_far), np.uint16)
    np.left_shift(high, 3 if tag == FINE else 7, out=high)
    other = reader.take((count + 1) // 2 if tag == FINE else count)
    return np.bitwise_or(high, _unpack(tag, np.frombuffer(other, np.uint8))[:count], out=high)


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
        np.bitwise_or(wide, wide << 8, out=wide)
        return np.bitwise_and(wide, 0x807F, out=wide)
    pairs = packed.astype(np.uint32)
    np.multiply(pairs, _SPREAD, out=pairs)
    return np.bitwise_and(pairs, _TWICE, out=pairs).view(np.uint16)


# Two axes for int8 symbols: magnitudes, cut into two cells an octave; values, each by itself.
_SYMBOLS: Final = np.arange(256).astype(np.int8).astype(np.intp)
_PLACES: Final = {CELLS: np.abs(_SYMBOLS), SYMBOLS: _SYMBOLS + 128}
_SHIFT: Final = np.maximum(np.frexp(np.arange(129))[1] - 2, 0)
_CELL: Final = {CELLS: (np.arange(129) >> _SHIFT) + 2 * _SHIFT, SYMBOLS: np.arange(256)}


def _cells(tag: int, low: int, high: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Cell of each place from `low` to `high`, counted from 0; and twice the centres of cells."""
    _, first, cell = np.unique(_CELL[tag][low : high + 1], return_index=True, return_inverse=True)
    return cell, 2 * low + first + np.append(first[1:], cell.size) - 1


def _levels(tag: int, counts: NDArray[np.intp]) -> tuple[int, int, bytes]:
    """First and last place in use, and the levels of the cells from one to the other."""
    sums = np.bincount(_PLACES[tag], counts)
    low, high = np.flatnonzero(sums)[[0, -1]].tolist()
    cell, _ = _cells(tag, low, high)
    seen = np.bincount(cell, sums[low : high + 1])
    alike = np.bincount(cell, np.bincount(_PLACES[tag])[low : high + 1])
    return low, high, bytes(level_of(int(n)) for n in 64 * seen // alike)


def _weights(tag: int, low: int, high: int, levels: bytes) -> tuple[int, ...]:
    """Integer weights of the 256 symbols; levels, as logarithms, run straight between centres."""
    _, centre = _cells(tag, low, high)
    at = np.clip(2 * np.arange(low, high + 1), centre[0], centre[-1])
    right = np.minimum(np.searchsorted(centre, at, "right"), centre.size - 1)
    left = np.maximum(right - 1, 0)
    level = 16 * np.frombuffer(levels, np.uint8).astype(np.intp)
    rise = (level[right] - level[left]) * (at - centre[left])
    fine = level[left] + rise // np.maximum(centre[right] - centre[left], 1)
    weights = np.zeros(256, np.intp)
    weights[low : high + 1] = (128 + fine % 128) << (fine // 128)
    return tuple(weights[_PLACES[tag]].tolist())


def _encode_symbols(values: NDArray[np.int8], *, is_last: bool) -> Pieces:
    """int8: zstd where Huffman codes are good, ANS with a short or a full table elsewhere."""
    symbols = values.view(np.uint8)
    counts = np.bincount(symbols, minlength=256)
    found: list[Pieces] = []
    if values.size >= _SMALL or not has_ans():
        coded = _compressed(symbols)
        found.append([bytes([ZSTD]), count_bytes(len(coded)), coded])
        if 8 * len(coded) <= 1.02 * _bits(counts, tuple(counts.tolist())):
            return found[0]
    if has_ans():
        few = np.count_nonzero(counts) < 32
        tags = (CELLS, SYMBOLS) if values.size >= _SMALL or few else (CELLS,)
        levels = {tag: _levels(tag, counts) for tag in tags}
        weights = {tag: _weights(tag, *levels[tag]) for tag in tags}
        tag = min(tags, key=lambda tag: 8 * len(levels[tag][2]) + _bits(counts, weights[tag]))
        ans = AnsWriter()
        ans.symbols(symbols, weights[tag])
        stream = ans.finish()
        head = bytes([tag, *levels[tag][:2], *levels[tag][2]])
        found.append([head, b"" if is_last else count_bytes(len(stream)), stream])
    return min(found, key=_size)


def _bits(counts: NDArray[np.intp], weights: tuple[int, ...]) -> float:
    """Bits of symbols that occur `counts` times, in a code of these weights."""
    seen = counts > 0
    share = np.array(weights)[seen] / sum(weights)
    return -float(counts[seen] @ np.log2(share))


def _decode_symbols(reader: Reader, values: NDArray[np.int8], *, is_last: bool) -> None:
    """Fill `values` with the next chunk."""
    tag = reader.byte()
    symbols = values.view(np.uint8)
    if tag == RAW:
        symbols[:] = np.frombuffer(reader.take(symbols.size), np.uint8)
    elif tag == ZSTD:
        symbols[:] = _decompress(reader, reader.count(len(reader)), symbols.size)
    elif tag in _CELL:
        low, high = reader.byte(), reader.byte()
        if not low <= high < _CELL[tag].size:
            raise reader.error(f"places up to {_CELL[tag].size - 1}, found {low} to {high}.")
        levels = bytes(reader.take(_cells(tag, low, high)[1].size))
        stream = reader.rest() if is_last else reader.take(reader.count(len(reader)))
        ans = AnsReader(stream, "values of kind 'i1'")
        symbols[:] = ans.symbols(symbols.size, _weights(tag, low, high, levels))
        ans.finish()
    else:
        raise reader.error(f"one of {[RAW, ZSTD, *_CELL]} expected, found {tag}.")


def _compressed(symbols: NDArray[np.uint8]) -> bytes:
    return _compressor.compress(symbols.data, mode=zstd.ZstdCompressor.FLUSH_FRAME)


def _decompress(reader: Reader, size: int, count: int) -> NDArray[np.uint8]:
    decoder = zstd.ZstdDecompressor(options=_WINDOW)
    try:
        symbols = decoder.decompress(reader.take(size), max_length=count)
    except zstd.ZstdError as error:
        raise reader.error(f"not a zstd frame: {error}") from error
    if len(symbols) != count or not decoder.eof or decoder.unused_data:
        raise reader.error(f"a zstd frame of {count} symbols expected, found another.")
    return np.frombuffer(symbols, np.uint8)


def _size(pieces: Pieces) -> int:
    return sum(memoryview(piece).nbytes for piece in pieces)
