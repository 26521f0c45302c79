"""Precisions of float32 values on the wire: lossless, 16 bits, or 8 bits with a scale per group.

fp32   exact
bf16   nearest bfloat16 (8 bits of exponent, 7 of mantissa)
fp16   nearest float16, largest magnitude 65504
int8   round(127 x / s) for each group of 1024 values with s = max |x|; rounded up or down at
       random by key, with the chances that make the expectation exactly x
"""

from collections.abc import Callable
from typing import Final, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fedsieve.core import keys
from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key
from fedsieve.wire import Precision
from fedsieve.wire.bits import Pieces
from fedsieve.wire.values import CHUNK, Array, Kind, decode_values, encode_values

Floats: TypeAlias = NDArray[np.float32]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
GROUP: Final = 1024
_STEPS: Final = 127
_LARGEST_HALF: Final = np.float32(65504)


def encode_floats(arrays: list[Floats], precision: Precision, key: Key) -> Pieces:
    """Values of several arrays at a precision; `key` addresses the draws of stochastic rounding."""
    match precision:
        case "fp32":
            return _by_chunk(arrays, "f4", lambda chunk: chunk)
        case "bf16":
            return _by_chunk(arrays, "bf", _to_bf16)
        case "fp16":
            return _by_chunk(arrays, "f2", lambda chunk: _to_fp16(chunk).view(np.uint16))
        case "int8":
            scales, whole = _to_int8(np.concatenate(arrays), key)
            return [scales.astype("<f4").tobytes(), *encode_values(whole, "i1")]


def _by_chunk(arrays: list[Floats], kind: Kind, convert: Callable[[Floats], Array]) -> Pieces:
    """As if the arrays were one; rounding what is in the cache is several times faster."""
    pieces: Pieces = []
    waiting: list[Floats] = []
    room = CHUNK[kind]
    for array in arrays:
        start = 0
        while array.size - start >= room:
            whole = [*waiting, array[start : start + room]]
            pieces += encode_values(convert(np.concatenate(whole) if waiting else whole[0]), kind)
            waiting, start, room = [], start + room, CHUNK[kind]
        waiting.append(array[start:])
        room -= array.size - start
    return pieces + encode_values(convert(np.concatenate(waiting)), kind)


def decode_floats(data: memoryview, count: int, precision: Precision) -> Floats:
    """The `count` float32 values that `encode_floats` wrote.

    Raises:
        WireError: the bytes are not that many values at that precision.
    """
    match precision:
        case "fp32":
            return decode_values(data, count).astype(np.float32, copy=False)
        case "bf16":
            bits = decode_values(data, count, "bf").astype(np.uint32)
            bits <<= 16
            return bits.view(np.float32)
        case "fp16":
            return decode_values(data, count, "f2").view(np.float16).astype(np.float32)
        case "int8":
            groups = -(-count // GROUP)
            if len(data) < 4 * groups:
                raise WireError(f"{groups} scales of 4 bytes expected, {len(data)} bytes found.")
            scales = np.frombuffer(data[: 4 * groups], "<f4")
            whole = decode_values(data[4 * groups :], count, "i1").astype(np.float32)
            whole /= _STEPS  # at most 1: no scale makes it overflow
            full = count // GROUP
            with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite or forged
                whole[: full * GROUP].reshape(full, GROUP)[:] *= scales[:full, None]
                whole[full * GROUP :] *= scales[full:]
            return whole


def _to_bf16(values: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    is_nan = np.isnan(values)
    if is_nan.any():
        rounded[is_nan] = (bits[is_nan] >> 16) | 0x40
    return rounded.astype(np.uint16)


def _to_fp16(values: Floats) -> NDArray[np.float16]:
    """The nearest float16; finite values stay finite, NaN and infinity can be told by all."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    too_large = np.isinf(halves) & np.isfinite(values)
    if too_large.any():
        halves[too_large] = np.copysign(_LARGEST_HALF, values[too_large])
    return halves


def _to_int8(values: Floats, key: Key) -> tuple[Floats, NDArray[np.int8]]:
    """Scale of each group, and whole numbers from -127 to 127 whose expectation is 127 x / s."""
    groups = -(-values.size // GROUP)
    padded = np.zeros(groups * GROUP, np.float32)
    padded[: values.size] = values
    table = padded.reshape(groups, GROUP)
    scales = np.abs(table).max(axis=1, initial=0.0)
    with np.errstate(invalid="ignore"):
        table /= scales[:, None]  # at most 1: exact at the ends, however small or large the scale
    table *= _STEPS
    lower = np.floor(padded)
    draws = keys.generator(key).random(padded.size, dtype=np.float32)
    whole = lower + (draws < padded - lower)
    # Groups that are all 0 or hold NaN or infinity: 0 / 0; the scale alone tells the receiver.
    return scales, np.nan_to_num(whole[: values.size]).astype(np.int8)
