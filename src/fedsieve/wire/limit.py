"""The information limit of a message: what a perfect memoryless coder of masks and values needs.

Masks: the sum over tensors of n H(density) bits. Values: H(exponent) bits, and sign and mantissa
raw (24 bits in float32, 8 in bfloat16); int8: H(symbol). Entropies are those of the very values
sent, so a coder that finds more structure can stay below.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.message import Bit, Kept, Natural, Number, Whole, fields
from fedsieve.wire import Precision

_RAW_BITS = {"fp32": 24, "bf16": 8, "fp16": 11}
_EXPONENT_SHIFT = 23


def mask_bits(kept: NDArray[np.bool_]) -> float:
    """Entropy of one tensor's mask at its own density: n H(share of True)."""
    size, ones = kept.size, int(np.count_nonzero(kept))
    if ones in {0, size}:
        return 0.0
    share = ones / size
    return -size * (share * math.log2(share) + (1 - share) * math.log2(1 - share))


def value_bits(values: NDArray[np.float32], precision: Precision = "fp32") -> float:
    """Bits of the values at a precision; for int8, of whole steps of the largest magnitude."""
    if not values.size:
        return 0.0
    if precision == "int8":
        return values.size * _entropy(np.round(values / (np.abs(values).max() or 1) * 127))
    exponents = (values.view(np.uint32) >> _EXPONENT_SHIFT) & 0xFF
    return values.size * (_entropy(exponents) + _RAW_BITS[precision])


def message_bytes(message: Any, precision: Precision = "fp32") -> float:
    """The limit of a whole message whose masks are new to the receiver."""
    bits = 0.0
    for name, role in fields(type(message)):
        value = getattr(message, name)
        match role:
            case Bit():
                bits += sum(mask_bits(m.numpy()) for m in value.values())
            case Whole() | Kept():
                mask = getattr(message, role.where) if isinstance(role, Kept) else {}
                exact = isinstance(role, Whole) and role.exact
                arrays = [
                    t[mask[n].expand_as(t)].numpy() if n in mask else t.numpy().reshape(-1)
                    for n, t in value.items()
                ]
                floats = [a for a in arrays if a.dtype == np.float32]
                how = "fp32" if exact else precision
                bits += value_bits(np.concatenate(floats), how) if floats else 0
                bits += sum(8 * a.nbytes for a in arrays if a.dtype != np.float32)
            case Number():
                bits += 64
            case Natural():
                bits += max(int(value).bit_length(), 1)
    return bits / 8


def _entropy(symbols: NDArray[Any]) -> float:
    _, counts = np.unique(symbols, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
