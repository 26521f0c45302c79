"""Few values, with their places: the largest, some at random, or those beyond a bound.

Source   Top-k: Aji & Heafield, EMNLP 2017; Stich et al., "Sparsified SGD with Memory", 2018.
         Rand-k: Konecny et al., "Federated Learning: Strategies for Improving Communication
         Efficiency", 2016. Beyond a bound: Strom, Interspeech 2015. Ternary: Sattler et al.,
         "Robust and Communication-Efficient Federated Learning from Non-i.i.d. Data" (STC), 2019.
Rule     top_k: the k largest magnitudes of the message. rand_k: places from the message's key,
         which cost nothing; values times n / k, so that the mean is right. beyond: magnitudes of at
         least `multiple` root mean squares of their tensor. ternary: of the k largest the sign,
         times their mean magnitude. All but rand_k are biased: they want error feedback.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedsieve.core import keys
from fedsieve.core.keys import Key, fold
from fedsieve.core.options import in_range, option
from fedsieve.sparsity import masks
from fedsieve.wire.bits import Bools, Pieces, Reader, count_bytes, runs_of, set_places
from fedsieve.wire.compressors.base import Floats, rms
from fedsieve.wire.compressors.dense import Fp32, Values
from fedsieve.wire.compressors.signs import Sign
from fedsieve.wire.masks import decode_mask, encode_mask


@dataclass(frozen=True)
class TopK:
    """The largest magnitudes of a message."""

    share: float = option(0.01, "of the values that is sent")
    values: Values = option(Fp32(), "how those are written")

    def __post_init__(self) -> None:
        in_range("top_k: share", self.share, 0, 1, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        flat = np.concatenate(arrays)
        chosen = masks.largest(torch.from_numpy(np.abs(flat)), _count(self.share, flat.size))
        return _encode_chosen(arrays, chosen.numpy(), self.values, key)

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        return _decode_chosen(reader, sizes, self.values, key)


@dataclass(frozen=True)
class Ternary:
    """The signs of the largest magnitudes of a message, and the mean of these in each tensor."""

    share: float = option(0.01, "of the values that is sent")

    def __post_init__(self) -> None:
        in_range("ternary: share", self.share, 0, 1, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        return TopK(self.share, Sign()).encode(arrays, key)

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        return _decode_chosen(reader, sizes, Sign(), key)


@dataclass(frozen=True)
class Beyond:
    """Magnitudes that stand out of their tensor."""

    multiple: float = option(3.0, "of the root mean square of a tensor")
    values: Values = option(Fp32(), "how those are written")

    def __post_init__(self) -> None:
        in_range("beyond: multiple", self.multiple, 0, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        chosen = [np.abs(a) >= max(self.multiple * rms(a), np.float32(1e-38)) for a in arrays]
        return _encode_chosen(arrays, np.concatenate(chosen), self.values, key)

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        return _decode_chosen(reader, sizes, self.values, key)


@dataclass(frozen=True)
class RandK:
    """Values at random places, which both ends draw."""

    share: float = option(0.01, "of the values that is sent")
    values: Values = option(Fp32(), "how those are written")
    unbiased: bool = option(
        True, "send values times n / k; false, with error feedback: as they are"
    )

    def __post_init__(self) -> None:
        in_range("rand_k: share", self.share, 0, 1, above=True)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        places = self._places(sum(array.size for array in arrays), key)
        flat = np.concatenate(arrays)
        factor = np.float32(flat.size / max(len(places), 1) if self.unbiased else 1)
        return self.values.encode([flat[places] * factor], fold(key, "values"))

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        flat = np.zeros(sum(sizes), np.float32)
        places = self._places(flat.size, key)
        (flat[places],) = self.values.decode(reader, [len(places)], fold(key, "values"))
        return runs_of(flat, sizes)

    def _places(self, size: int, key: Key) -> list[int]:
        return keys.sample(key, size, _count(self.share, size)) if size else []


def _count(share: float, size: int) -> int:
    """How many of `size` values are sent, at least one."""
    return min(max(masks.count_at(share, size), 1), size)


def _encode_chosen(arrays: Sequence[Floats], chosen: Bools, values: Values, key: Key) -> Pieces:
    places = encode_mask(chosen, tuple((1, array.size) for array in arrays))
    parts = runs_of(chosen, [array.size for array in arrays])
    kept = [array[set_places(part)] for array, part in zip(arrays, parts, strict=True)]
    return [count_bytes(len(places)), places, *values.encode(kept, fold(key, "values"))]


def _decode_chosen(reader: Reader, sizes: Sequence[int], values: Values, key: Key) -> list[Floats]:
    layout = tuple((1, size) for size in sizes)
    chosen = decode_mask(reader.take(reader.count(len(reader))), layout)
    parts = runs_of(chosen, sizes)
    counts = [int(np.count_nonzero(part)) for part in parts]
    decoded = values.decode(reader, counts, fold(key, "values"))
    arrays = [np.zeros(size, np.float32) for size in sizes]
    for array, part, kept in zip(arrays, parts, decoded, strict=True):
        array[set_places(part)] = kept
    return arrays
