"""Tensors of a field as blocks of values: float32 ones share a coded block, others a raw one."""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key
from fedsieve.core.message import Mask, Params, count_nonzero
from fedsieve.wire.bits import Bools, Pieces, Reader
from fedsieve.wire.compressors import Compression
from fedsieve.wire.compressors.low_rank import LowRank
from fedsieve.wire.schema import DTYPES, Entry, Part

Array: TypeAlias = NDArray[Any]
_CHUNK: Final = 2**14


def encode_tensors(
    part: Part, values: Params, mask: Mask, how: Compression, key: Key, base: Params
) -> list[Pieces]:
    """The blocks of a field, each in pieces: values under the mask, all where it has none.

    Of tensors in `base`, which the receiver holds, the difference to these is compressed.
    """
    kept = {e.name: _kept(values[e.name], mask.get(e.name)) for e in part.entries}
    entries = [e for e in part.entries if e.dtype == "f4"]
    floats = [
        kept[e.name] - _kept(base[e.name], mask.get(e.name)) if has_like(base, e) else kept[e.name]
        for e in entries
    ]
    others = [kept[e.name] for e in part.entries if e.dtype != "f4"]
    blocks: list[Pieces] = []
    if floats and isinstance(how, LowRank):
        shapes = [_shape(e, mask, array.size) for e, array in zip(entries, floats, strict=True)]
        blocks.append(how.encode_tables(floats, shapes, key))
    elif floats:
        blocks.append(how.encode(floats, key))
    if others:
        blocks.append([np.ascontiguousarray(array).tobytes() for array in others])
    return blocks


def decode_tensors(
    part: Part, blocks: Iterator[memoryview], mask: Mask, how: Compression, key: Key, base: Params
) -> Params:
    """The tensors of a field from the next of the frame's blocks; 0 outside the mask."""
    sent = {e.name: _sent(e, mask.get(e.name)) for e in part.entries}
    floats = [e for e in part.entries if e.dtype == "f4"]
    others = [e for e in part.entries if e.dtype != "f4"]
    arrays: dict[str, Array] = {}
    if floats:
        reader = Reader(_next(blocks, part), part.name)
        if isinstance(how, LowRank):
            decoded = how.decode_tables(
                reader, [_shape(e, mask, sent[e.name]) for e in floats], key
            )
        else:
            decoded = how.decode(reader, [sent[e.name] for e in floats], key)
        for entry, values in zip(floats, decoded, strict=True):
            held = _kept(base[entry.name], mask.get(entry.name)) if has_like(base, entry) else None
            arrays[entry.name] = values if held is None else values + held
    if others:
        block = _next(blocks, part)
        for entry in others:
            size = sent[entry.name] * DTYPES[entry.dtype].itemsize
            arrays[entry.name], block = _raw_values(entry, block[:size], size), block[size:]
        if len(block):
            raise WireError(f"{part.name}: {len(block)} bytes are left over.")
    return {e.name: _placed(e, arrays[e.name], mask.get(e.name)) for e in part.entries}


def has_like(base: Params, entry: Entry) -> bool:
    """Whether a tensor can be written as a difference to one of `base`."""
    held = base.get(entry.name)
    return held is not None and held.dtype == torch.float32 and held.shape == entry.shape


def _shape(entry: Entry, mask: Mask, sent: int) -> tuple[int, ...]:
    """The shape of a tensor that is sent whole; of values under a mask only how many they are."""
    return (sent,) if entry.name in mask else entry.shape


def _next(blocks: Iterator[memoryview], part: Part) -> memoryview:
    block = next(blocks, None)
    if block is None:
        raise WireError(f"{part.name}: its block is missing.")
    return block


def _kept(tensor: Tensor, mask: Tensor | None) -> Array:
    # Places first: several times faster than a boolean index, in numpy as in torch.
    array = tensor.detach().numpy().reshape(-1)
    if mask is None or mask.numpy().all():
        return array
    return array.take(np.flatnonzero(_spread(mask, tensor.shape)))


def _spread(mask: Tensor, shape: tuple[int, ...]) -> Bools:
    """A mask over the places of a tensor; along an axis of length 1 all share one bit."""
    return mask.expand(shape).numpy().reshape(-1)


def _sent(entry: Entry, mask: Tensor | None) -> int:
    return entry.count if mask is None else count_nonzero(mask.expand(entry.shape))


def _raw_values(entry: Entry, block: memoryview, size: int) -> Array:
    if len(block) != size:
        raise WireError(f"{entry.name}: {size} bytes expected, {len(block)} left.")
    if entry.dtype == "b1" and np.frombuffer(block, np.uint8).max(initial=0) > 1:
        raise WireError(f"{entry.name}: a byte of a truth value is neither 0 nor 1.")
    return np.frombuffer(block, dtype=f"<{entry.dtype}").copy()


def _placed(entry: Entry, values: Array, mask: Tensor | None) -> Tensor:
    if mask is not None and values.size < entry.count:
        full, is_kept, at = np.zeros(entry.count, values.dtype), _spread(mask, entry.shape), 0
        for start in range(0, entry.count, _CHUNK):  # places of all at once would take 8 bytes each
            places = np.flatnonzero(is_kept[start : start + _CHUNK])
            full[start : start + _CHUNK][places] = values[at : at + places.size]
            at += places.size
        values = full
    return torch.from_numpy(values).view(entry.shape)
