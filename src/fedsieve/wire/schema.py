"""Schemas: names, shapes and types of a message, agreed once and then named by an 8-byte hash."""

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
import torch
import xxhash
from torch import Tensor

from fedsieve.core.errors import WireError
from fedsieve.core.message import Bit, Drawn, Kept, Number, Role, Whole, fields

DTYPES = {
    "f4": torch.float32,
    "f8": torch.float64,
    "f2": torch.float16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "b1": torch.bool,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
BOOLEAN = frozenset({"bits", "drawn"})  # roles whose tensors arrive as masks
MAX_DIMENSIONS = 8
MAX_SCHEMAS = 256  # that an end remembers
MAX_EXTENT = 2**48  # product of the dimensions that are not 0: strides stay far from 2**63


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor of a field."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One field of a message: its role as a word, and its tensors (none for a number)."""

    name: str
    role: str
    entries: tuple[Entry, ...]


class Schema(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The layout of a message class with its tensors."""

    parts: tuple[Part, ...]

    def packed(self) -> bytes:
        return _encoder.encode(self)

    def tensor_bytes(self) -> int:
        """Bytes of all tensors when decoded."""
        return sum(entry.bytes for part in self.parts for entry in part.entries)


Hash: TypeAlias = int
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Schema)
_known: dict[Any, tuple[Schema, Hash]] = {}


def schema_of(message: Any) -> tuple[Schema, Hash]:
    """The schema of a message and its hash.

    Raises:
        WireError: a tensor cannot be sent, or a mask does not fit what it masks.
    """
    signature = (type(message), tuple(_signature(message)))
    if signature not in _known:
        schema = Schema(tuple(_part(message, name, role) for name, role in fields(type(message))))
        _check(schema)
        _known[signature] = schema, hash_of(schema.packed())
        while len(_known) > MAX_SCHEMAS:
            _known.pop(next(iter(_known)))
    return _known[signature]


def hash_of(packed: bytes) -> Hash:
    """The name of a packed schema in the frames that follow it."""
    return xxhash.xxh3_64_intdigest(packed)


def unpacked(packed: bytes) -> Schema:
    """The schema that this end has packed itself."""
    return _decoder.decode(packed)


def read_schema(packed: bytes) -> tuple[Schema, Hash]:
    """A schema announced by a peer; see `Bound.check` before anything is sized by it.

    Raises:
        WireError: it is malformed, or its tensors are impossible.
    """
    try:
        schema = _decoder.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"announced schema is malformed: {error}") from error
    _check(schema)
    return schema, hash_of(packed)


def check_kind(schema: Schema, kind: type) -> None:
    """Raise WireError unless the schema is one of message class `kind`."""
    expected = [(name, role_word(role)) for name, role in fields(kind)]
    declared = [(part.name, part.role) for part in schema.parts]
    if expected != declared:
        raise WireError(f"expected a {kind.__qualname__} message {expected}, found {declared}.")


def role_word(role: Role) -> str:
    match role:
        case Whole(exact):
            return "exact" if exact else "dense"
        case Kept(where):
            return f"kept:{where}"
        case Bit():
            return "bits"
        case Drawn():
            return "drawn"
        case Number():
            return "scalar"
        case _:
            return "count"


def _check(schema: Schema) -> None:
    """Raise WireError unless every tensor is possible and every mask fits what it masks."""
    masks = {p.name: {e.name: e.shape for e in p.entries} for p in schema.parts if p.role == "bits"}
    for part in schema.parts:
        mask = masks.get(part.role.partition("kept:")[2], {})
        if len({entry.name for entry in part.entries}) < len(part.entries):
            raise WireError(f"schema: {part.name} has two tensors of one name.")
        for entry in part.entries:
            place = f"schema: {part.name}/{entry.name}"
            if entry.dtype not in DTYPES:
                raise WireError(f"{place} has unknown type {entry.dtype!r}.")
            if (
                len(entry.shape) > MAX_DIMENSIONS
                or min(entry.shape, default=0) < 0
                or math.prod(d or 1 for d in entry.shape) > MAX_EXTENT
            ):
                raise WireError(f"{place} has an impossible shape {entry.shape}.")
            if part.role in BOOLEAN and entry.dtype != "b1":
                raise WireError(f"{place} is a mask of type {entry.dtype!r}, expected 'b1' (bool).")
            if not _covers(mask.get(entry.name, entry.shape), entry.shape):
                raise WireError(f"{place}: mask of {mask[entry.name]} for {entry.shape}.")


def _covers(mask: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a mask has the axes of a tensor, each of its length or of length 1."""
    return len(mask) == len(shape) and all(m in {1, n} for m, n in zip(mask, shape, strict=True))


def _part(message: Any, name: str, role: Role) -> Part:
    value = getattr(message, name)
    entries = value.items() if isinstance(value, dict) else ()
    return Part(name, role_word(role), tuple(_entry(name, role, n, t) for n, t in entries))


def _entry(field: str, role: Role, name: str, tensor: Tensor) -> Entry:
    dtype = torch.bool if isinstance(role, Drawn) else tensor.dtype  # as it arrives
    if dtype not in _CODES:
        raise WireError(f"{field}/{name}: type {dtype} cannot be sent ({sorted(DTYPES)}).")
    return Entry(name, _CODES[dtype], tuple(tensor.shape))


def _signature(message: Any) -> Iterator[Any]:
    for value in message:
        if isinstance(value, dict):
            yield tuple((name, t.dtype, t.shape) for name, t in value.items())
