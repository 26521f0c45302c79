"""int8 values as symbols.

ZSTD           where Huffman codes are good: they take a bit a symbol at least
CELLS, SYMBOLS by ANS, with one level for symbols of like size, or for each
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Reader, count_bytes
from fedsieve.wire.entropy import AnsReader, AnsWriter, compress, decompress, level_of

ZSTD, CELLS, SYMBOLS = 4, 5, 6
_SMALL: Final = 8192  # symbols; fewer may be worth less than a table

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


def encode_symbols(values: NDArray[np.int8], *, is_last: bool) -> list[bytes]:
    """int8: zstd where Huffman codes are good, ANS with a short or a full table elsewhere."""
    symbols = values.view(np.uint8)
    counts = np.bincount(symbols, minlength=256)
    coded: list[list[bytes]] = []
    if values.size >= _SMALL:
        huffman = compress(symbols)
        coded.append([bytes([ZSTD]), count_bytes(len(huffman)), huffman])
        if 8 * len(huffman) <= 1.02 * _bits(counts, tuple(counts.tolist())):
            return coded[0]
    few = np.count_nonzero(counts) < 32
    tags = (CELLS, SYMBOLS) if values.size >= _SMALL or few else (CELLS,)
    levels = {tag: _levels(tag, counts) for tag in tags}
    weights = {tag: _weights(tag, *levels[tag]) for tag in tags}
    tag = min(tags, key=lambda tag: 8 * len(levels[tag][2]) + _bits(counts, weights[tag]))
    ans = AnsWriter()
    ans.symbols(symbols, weights[tag])
    stream = ans.finish()
    head = bytes([tag, *levels[tag][:2], *levels[tag][2]])
    coded.append([head, b"" if is_last else count_bytes(len(stream)), stream])
    return min(coded, key=lambda pieces: sum(map(len, pieces)))


def _bits(counts: NDArray[np.intp], weights: tuple[int, ...]) -> float:
    """Bits of symbols that occur `counts` times, in a code of these weights."""
    seen = counts > 0
    share = np.array(weights)[seen] / sum(weights)
    return -float(counts[seen] @ np.log2(share))


def decode_symbols(reader: Reader, tag: int, values: NDArray[np.int8], *, is_last: bool) -> None:
    """Fill `values` with the next chunk, of coder `tag`."""
    symbols = values.view(np.uint8)
    if tag == ZSTD:
        symbols[:] = decompress(reader, reader.count(len(reader)), symbols.size)
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
        raise reader.error(f"one of {[0, ZSTD, *_CELL]} expected, found {tag}.")
