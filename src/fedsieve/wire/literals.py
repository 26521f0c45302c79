"""Bytes by zstd's literal stage, a fast Huffman coder; matches are noise, hardly looked for."""

import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Reader

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

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
