"""Encode and decode messages: each field by its role, masks and values in their own sections.

What the receiver is known to hold need not be sent again: a schema is then named by its hash, and
a mask is coded as the change against one named by its hash. A receiver that does not hold what a
frame refers to refuses it with `UnheldError`, and the sender tries again without.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bit, Kept, Mask, Natural, Number, Params, Role, Whole, fields
from fedsieve.wire.frame import Header, Payload, Sections, open_frame, seal
from fedsieve.wire.masks import Layout, decode_change, decode_mask, encode_change, encode_mask
from fedsieve.wire.precision import PRECISIONS, Precision, decode_floats, encode_floats
from fedsieve.wire.schema import (
    DTYPES,
    Entry,
    Hash,
    Part,
    Schema,
    check_kind,
    hash_of,
    read_schema,
    schema_of,
)

MAX_COUNT = 2**63 - 1
_CHUNK = 2**14
Array: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
Recall: TypeAlias = Mapping[Hash, Bools]  # masks an end holds, by hash


class UnheldError(WireError):
    """The frame refers to a schema or mask that this end does not hold."""


class Known(NamedTuple):
    """What the receiver is known to hold."""

    schemas: frozenset[Hash] = frozenset()
    masks: Recall = MappingProxyType({})


class Coding(NamedTuple):
    """How float32 values are written; `key` addresses stochastic rounding."""

    precision: Precision = "fp32"
    key: Key = Key(0)


def encode(message: Any, known: Known = Known(), coding: Coding = Coding()) -> Payload:  # noqa: B008
    """A message as bytes. A message without fields takes no bytes at all."""
    roles = fields(type(message))
    if not roles:
        return Payload(b"", 0, 0, 0)
    schema, mark = schema_of(message)
    numbers: list[int | float] = []
    masks: list[bytes] = []
    bases: list[Hash] = []
    values: list[bytes] = []
    for (name, role), part in zip(roles, schema.parts, strict=True):
        value = getattr(message, name)
        match role:
            case Whole() | Kept():
                mask = getattr(message, role.where) if isinstance(role, Kept) else {}
                how = Coding() if isinstance(role, Whole) and role.exact else coding
                if how.precision == "int8":  # draws of its own: products of fields stay unbiased
                    how = how._replace(key=fold(coding.key, name))
                values += _value_blocks(part, value, mask, how)
            case Bit():
                base, block = _mask_block(part, value, known.masks)
                bases.append(base)
                masks.append(block)
            case Number():
                numbers.append(float(value))
            case Natural():
                numbers.append(_count(name, value))
    header = Header(
        mark,
        tuple(map(len, masks)),
        tuple(map(len, values)),
        tuple(bases),
        tuple(numbers),
        PRECISIONS.index(coding.precision),
        b"" if mark in known.schemas else schema.packed(),
    )
    return seal(header, masks + values)


def masks_of(message: Any) -> dict[Hash, Bools]:
    """The masks of a message by hash: what both ends hold once it has arrived."""
    if not any(isinstance(field.role, Bit) for field in fields(type(message))):
        return {}
    schema, _ = schema_of(message)
    found = {}
    for (name, role), part in zip(fields(type(message)), schema.parts, strict=True):
        if isinstance(role, Bit):
            flat = _flat(getattr(message, name))
            found[_mask_hash(part, flat)] = flat
    return found


class Decoder:
    """One end's reading side: the schemas it has been told, and how much it is willing to hold."""

    def __init__(self, limit_bytes: int = 2**32) -> None:
        self.limit_bytes = limit_bytes
        self.schemas: dict[Hash, Schema] = {}

    def decode(self, data: bytes | memoryview, kind: type, recall: Recall | None = None) -> Any:
        """The message of class `kind` in `data`; learns a schema announced there.

        Raises:
            UnheldError: it refers to a schema not told before, or a mask that is not in `recall`.
            WireError: the bytes are not a valid frame of that class.
        """
        roles = fields(kind)
        if not roles:
            if len(data):
                raise WireError(f"{kind.__qualname__} has no fields, found {len(data)} bytes.")
            return kind()
        sections = open_frame(data)
        schema = self._schema(sections.header)
        check_kind(schema, kind)
        reader = _Reader(sections, recall or {})
        parts = list(zip(roles, schema.parts, strict=True))
        masks = {f.name: reader.mask(part) for f, part in parts if isinstance(f.role, Bit)}
        found = {f.name: reader.field(part, f.role, masks) for f, part in parts}
        reader.finish()
        return kind(**found)

    def learn(self, packed: bytes) -> Hash:
        """Hold a schema told by the peer; returns its hash."""
        schema, mark = read_schema(packed, self.limit_bytes)
        self.schemas[mark] = schema
        return mark

    def _schema(self, header: Header) -> Schema:
        if header.announced:
            mark = hash_of(header.announced)
            if mark != header.schema:
                raise WireError(f"announced schema has hash {mark:016x}, not {header.schema:016x}.")
            self.learn(header.announced)
        if header.schema not in self.schemas:
            raise UnheldError(f"schema {header.schema & (2**64 - 1):016x} was never announced.")
        return self.schemas[header.schema]


class _Reader:
    """Takes fields off the blocks of a frame, in order."""

    def __init__(self, sections: Sections, recall: Recall) -> None:
        header = sections.header
        self._masks, self._values = list(sections.masks), list(sections.values)
        self._bases, self._numbers = list(header.bases), list(header.numbers)
        if not 0 <= header.precision < len(PRECISIONS):
            raise WireError(f"precision 0 to {len(PRECISIONS) - 1}, found {header.precision}.")
        self._precision = PRECISIONS[header.precision]
        self._recall = recall

    def field(self, part: Part, role: Role, masks: dict[str, Mask]) -> Any:
        match role:
            case Whole(exact):
                return self.tensors(part, {}, "fp32" if exact else self._precision)
            case Kept(where):
                return self.tensors(part, masks[where], self._precision)
            case Bit():
                return masks[part.name]
            case _:
                return self.number(part.name, role)

    def number(self, name: str, role: Number | Natural) -> int | float:
        value = self._numbers.pop(0) if self._numbers else None
        if isinstance(role, Number) and isinstance(value, float):
            return value
        if isinstance(role, Natural) and isinstance(value, int) and 0 <= value <= MAX_COUNT:
            return value
        raise WireError(f"{name}: expected a {type(role).__name__.lower()}, found {value!r}.")

    def mask(self, part: Part) -> Mask:
        layout, size = _layout(part), sum(entry.count for entry in part.entries)
        block, base = self._next(self._masks, part), self._bases.pop(0) if self._bases else 0
        if base:
            before = self._recall.get(base)
            if before is None or before.size != size:
                raise UnheldError(f"{part.name}: mask {base & (2**64 - 1):016x} is not held here.")
            flat = decode_change(block, before, layout)
        else:
            flat = decode_mask(block, layout)
        pieces = torch.split(torch.from_numpy(flat), [entry.count for entry in part.entries])
        return {e.name: p.reshape(e.shape) for e, p in zip(part.entries, pieces, strict=True)}

    def tensors(self, part: Part, mask: Mask, precision: Precision) -> Params:
        """float32 tensors share one coded block; the others stand raw in another."""
        sent = {e.name: _sent(e, mask.get(e.name)) for e in part.entries}
        floats = [e for e in part.entries if e.dtype == "f4"]
        others = [e for e in part.entries if e.dtype != "f4"]
        found: dict[str, Array] = {}
        if floats:
            count, at = sum(sent[e.name] for e in floats), 0
            values = decode_floats(self._next(self._values, part), count, precision)
            for entry in floats:
                found[entry.name] = values[at : at + sent[entry.name]]
                at += sent[entry.name]
        if others:
            block = self._next(self._values, part)
            for entry in others:
                size = sent[entry.name] * DTYPES[entry.dtype].itemsize
                found[entry.name], block = _raw_values(entry, block[:size], size), block[size:]
            if len(block):
                raise WireError(f"{part.name}: {len(block)} bytes are left over.")
        return {e.name: _placed(e, found[e.name], mask.get(e.name)) for e in part.entries}

    def finish(self) -> None:
        left = (len(self._masks), len(self._values), len(self._bases), len(self._numbers))
        if any(left):
            raise WireError(f"left over: {left} mask blocks, value blocks, bases and numbers.")

    @staticmethod
    def _next(blocks: list[memoryview], part: Part) -> memoryview:
        if not blocks:
            raise WireError(f"{part.name}: its block is missing.")
        return blocks.pop(0)


def _mask_block(part: Part, mask: Mask, held: Recall) -> tuple[Hash, bytes]:
    """The mask coded against the nearest one the receiver holds, or by itself (hash 0)."""
    flat, layout = _flat(mask), _layout(part)
    same_size = {mark: other for mark, other in held.items() if other.size == flat.size}
    if not same_size or not flat.size:
        return 0, encode_mask(flat, layout)
    mark = min(same_size, key=lambda m: int(np.count_nonzero(same_size[m] != flat)))
    return mark, encode_change(flat, same_size[mark], layout)


def _value_blocks(part: Part, values: Params, mask: Mask, coding: Coding) -> list[bytes]:
    kept = {e.name: _kept(values[e.name], mask.get(e.name)) for e in part.entries}
    floats = [kept[e.name] for e in part.entries if e.dtype == "f4"]
    others = [kept[e.name] for e in part.entries if e.dtype != "f4"]
    blocks = []
    if floats:
        joined = np.concatenate(floats) if len(floats) > 1 else np.ascontiguousarray(floats[0])
        blocks.append(encode_floats(joined, coding.precision, coding.key))
    if others:
        blocks.append(b"".join(np.ascontiguousarray(array).tobytes() for array in others))
    return blocks


def _kept(tensor: Tensor, mask: Tensor | None) -> Array:
    # Places first: several times faster than a boolean index, in numpy as in torch.
    array = tensor.detach().numpy().reshape(-1)
    if mask is None or mask.all():
        return array
    return array.take(np.flatnonzero(mask.numpy()))


def _sent(entry: Entry, mask: Tensor | None) -> int:
    return entry.count if mask is None else int(mask.count_nonzero())


def _raw_values(entry: Entry, block: memoryview, size: int) -> Array:
    if len(block) != size:
        raise WireError(f"{entry.name}: {size} bytes expected, {len(block)} left.")
    if entry.dtype == "b1" and np.frombuffer(block, np.uint8).max(initial=0) > 1:
        raise WireError(f"{entry.name}: a byte of a truth value is neither 0 nor 1.")
    return np.frombuffer(block, dtype=f"<{entry.dtype}").copy()


def _placed(entry: Entry, values: Array, mask: Tensor | None) -> Tensor:
    if mask is not None and values.size < entry.count:
        full, is_kept, at = np.zeros(entry.count, values.dtype), mask.numpy().reshape(-1), 0
        for start in range(0, entry.count, _CHUNK):  # places of all at once would take 8 bytes each
            places = np.flatnonzero(is_kept[start : start + _CHUNK])
            full[start : start + _CHUNK][places] = values[at : at + places.size]
            at += places.size
        values = full
    return torch.from_numpy(values).view(entry.shape)


def _layout(part: Part) -> Layout:
    """Rows and columns of each tensor: its first dimension counts neurons or filters."""
    shapes = [entry.shape or (1,) for entry in part.entries]
    return tuple(
        (s[0], entry.count // max(s[0], 1)) for s, entry in zip(shapes, part.entries, strict=True)
    )


def _flat(mask: Mask) -> Bools:
    arrays = [m.detach().numpy().reshape(-1) for m in mask.values()]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.bool_)


def _mask_hash(part: Part, flat: Bools) -> Hash:
    """Names a mask by its bits and shapes; never 0, which stands for none."""
    seed = xxhash.xxh3_64_intdigest(repr(_layout(part)).encode())
    return xxhash.xxh3_64_intdigest(np.packbits(flat).tobytes(), seed=seed) or 1


def _count(name: str, value: int) -> int:
    if value != int(value) or not 0 <= value <= MAX_COUNT:
        raise WireError(f"{name}={value}: a Count is a whole number from 0 to {MAX_COUNT}.")
    return int(value)
