"""The two entropy coders: asymmetric numeral systems by constriction, Huffman codes by zstd.

ANS: probabilities travel as one-byte levels on an integer grid, and every table is computed from
them in integers, so both ends hold the same table by construction. The numbers handed to
constriction are those integers as floats; `perfect=False` fixes how it rounds them.

zstd: its literal stage is a fast Huffman coder; matches are noise, hardly looked for.
"""

import math
import sys
from functools import lru_cache
from typing import Any, Final

import constriction  # type: ignore[import-untyped,unused-ignore]
import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import Bools, Ints, Reader, unpack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Level 0 is 0; level j > 0 is a float of 3 mantissa bits: 8 values an octave, 6 % apart at most.
LEVELS: Final = (0, *((8 + j % 8) << (j // 8) for j in range(255)))
HALF: Final = 127  # as a share of SCALE, this level is one half
SCALE: Final = 2 * LEVELS[HALF]
_BYTES: Final = np.arange(256)
_BLOCK: Final = 1 << 12  # symbols decoded together


def binary_entropy(ones: int, size: int) -> float:
    """Bits for `size` positions of which `ones` are set, all alike."""
    if not 0 < ones < size:
        return 0.0
    zeros = size - ones
    return ones * math.log2(size / ones) + zeros * math.log2(size / zeros)


def level_of(value: int, most: int = 255) -> int:
    """The level nearest to `value`; only 0 has level 0."""
    if value < 8:
        return int(value > 0)
    shift = value.bit_length() - 4
    return min(8 * shift + ((value + (1 << shift >> 1)) >> shift) - 7, most)


def density_level(ones: int, size: int) -> int:
    """Level of the rarer bit's share, plus 128 where that bit is 0."""
    inverted = 2 * ones > size
    rarer = size - ones if inverted else ones
    share = max(rarer * SCALE // size, 1) if rarer else 0
    return level_of(share, HALF) | inverted << 7


class AnsWriter:
    """Collects symbols with their models; `finish` codes them all into one stream."""

    def __init__(self) -> None:
        self._steps: list[tuple[NDArray[np.int32], Any]] = []

    def symbols(self, symbols: Ints, weights: tuple[float, ...]) -> None:
        """Symbols 0, 1, ... with probabilities in proportion to weights."""
        self._steps.append((symbols.astype(np.int32), _model(weights)))

    def packed(self, packed: NDArray[np.uint8], split: int, low: int, high: int) -> None:
        """Bytes whose `split` lowest bits have one density level, the others another."""
        if not _is_certain(split, low, high):
            self._steps.append((packed.astype(np.int32), _byte_model(split, low, high)))

    def bits(self, bits: Bools) -> int:
        """Bits that are alike but for their density; returns the level `AnsReader.bits` needs."""
        level = density_level(int(np.count_nonzero(bits)), bits.size)
        # The rarer bit is coded as 1, so that the padding behind the end costs nothing.
        self.packed(np.packbits(~bits if level >> 7 else bits), 0, 0, level & 127)
        return level

    def finish(self) -> bytes:
        coder = constriction.stream.stack.AnsCoder()
        for symbols, model in reversed(self._steps):
            coder.encode_reverse(symbols, model)
        words: NDArray[np.uint32] = coder.get_compressed()
        return words.astype("<u4").tobytes().rstrip(b"\0")


class AnsReader:
    """Reads a stream of AnsWriter; the caller knows what comes, how much, and with what model."""

    def __init__(self, data: memoryview, what: str) -> None:
        self._what = what
        words = np.frombuffer(bytes(data) + bytes(-len(data) % 4), "<u4").astype(np.uint32)
        if len(data) and not data[-1]:
            raise WireError(f"{what}: an ANS stream does not end in zeros.")
        self._coder = constriction.stream.stack.AnsCoder(words)

    def symbols(self, count: int, weights: tuple[float, ...]) -> NDArray[np.int32]:
        decoded: NDArray[np.int32] = self._coder.decode(_model(weights), count)
        return decoded

    def small_symbols(self, count: int, weights: tuple[float, ...]) -> NDArray[np.uint8]:
        """Of an alphabet of at most 256; decoded in blocks, they never take four bytes each."""
        model, symbols = _model(weights), np.empty(count, np.uint8)
        for start in range(0, count, _BLOCK):
            part = symbols[start : start + _BLOCK]
            part[:] = self._coder.decode(model, part.size)
        return symbols

    def packed(self, count: int, split: int, low: int, high: int) -> NDArray[np.uint8]:
        if _is_certain(split, low, high):
            return np.zeros(count, np.uint8)
        decoded: NDArray[np.int32] = self._coder.decode(_byte_model(split, low, high), count)
        return decoded.astype(np.uint8)

    def packed_bits(self, count: int, level: int) -> NDArray[np.uint8]:
        """`count` bits, eight a byte, highest first."""
        packed = np.empty((count + 7) // 8, np.uint8)
        for start in range(0, packed.size, _BLOCK):  # symbols take four bytes each
            part = packed[start : start + _BLOCK]
            part[:] = self.packed(part.size, 0, 0, level & 127)
        return np.invert(packed, out=packed) if level >> 7 else packed

    def bits(self, count: int, level: int) -> Bools:
        bits = np.empty(count, np.bool_)
        for start in range(0, count, 8 * _BLOCK):
            part = bits[start : start + 8 * _BLOCK]
            unpack(self.packed_bits(part.size, level), part)
        return bits

    def finish(self) -> None:
        if not self._coder.is_empty():
            raise WireError(f"{self._what}: the ANS stream does not end where its symbols do.")


def _model(weights: tuple[float, ...]) -> Any:
    table = np.array(weights, np.float64)
    return constriction.stream.model.Categorical(table, perfect=False)


def _is_certain(split: int, low: int, high: int) -> bool:
    """Whether only the byte 0 can occur."""
    return (split == 0 or low == 0) and (split == 8 or high == 0)


@lru_cache(maxsize=1024)
def _byte_model(split: int, low: int, high: int) -> Any:
    (one, zero), (one_high, zero_high) = (
        (SCALE - LEVELS[x & 127], LEVELS[x & 127]) if x >> 7 else (LEVELS[x], SCALE - LEVELS[x])
        for x in (low, high)
    )
    weights = [
        [
            float(one**i * zero ** (split - i) * one_high**j * zero_high ** (8 - split - j))
            for j in range(9 - split)
        ]
        for i in range(split + 1)
    ]
    low_ones = np.bitwise_count(_BYTES & ((1 << split) - 1))
    table = np.array(weights)[low_ones, np.bitwise_count(_BYTES >> split)]
    # A lazy model gives the same bits; it is three times faster where most bytes are 0.
    is_rare = 6 * (split * one + (8 - split) * one_high) < SCALE
    return constriction.stream.model.Categorical(table, perfect=False, lazy=is_rare)


_Parameter = zstd.CompressionParameter
_LITERALS: Final[dict[int, int]] = {
    _Parameter.compression_level: 1,
    _Parameter.strategy: int(zstd.Strategy.fast),
    _Parameter.min_match: 7,
    _Parameter.hash_log: 6,
    _Parameter.window_log: 17,
}
_compressor: Final = zstd.ZstdCompressor(options=_LITERALS)  # making one takes as long as using it
_WINDOW: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 17}


def compress(symbols: NDArray[np.uint8]) -> bytes:
    return _compressor.compress(symbols.data, mode=zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(reader: Reader, size: int, count: int) -> NDArray[np.uint8]:
    """`count` symbols from the next `size` bytes; no more are ever made."""
    decoder = zstd.ZstdDecompressor(options=_WINDOW)
    try:
        symbols = decoder.decompress(reader.take(size), max_length=count)
    except zstd.ZstdError as error:
        raise reader.error(f"not a zstd frame: {error}") from error
    if len(symbols) != count or not decoder.eof or decoder.unused_data:
        raise reader.error(f"a zstd frame of {count} symbols expected, found another.")
    return np.frombuffer(symbols, np.uint8)
