"""Encode and decode messages: each field by its role, masks and values in their own sections.

What the receiver is known to hold need not be sent again: a schema is then named by its hash, and
a mask is coded as the change against one named by its hash, or by how likely its bits were in the
message that it answers; probabilities travel as one of many masks drawn from those. A receiver that
does not hold what a frame refers to refuses it with `UnheldError`, and the sender tries again
without.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from fedsieve.core.errors import ConfigError, WireError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import (
    Bit,
    Drawn,
    Kept,
    Mask,
    Natural,
    Number,
    Params,
    Role,
    Whole,
    fields,
)
from fedsieve.core.options import brief, read
from fedsieve.wire.bits import Pieces, size_of
from fedsieve.wire.bound import MAX_BYTES, Bound
from fedsieve.wire.changes import decode_change, encode_change
from fedsieve.wire.compressors import EXACT, KINDS, NAMED, Compression
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.contexts import Bins, Contexts, decode_likely, encode_likely
from fedsieve.wire.drawn import decode_drawn, encode_drawn
from fedsieve.wire.frame import (
    NAME_BYTES,
    Compressed,
    Header,
    MaskBlock,
    Payload,
    Sections,
    open_frame,
    seal,
)
from fedsieve.wire.masks import DRAWN, LIKELY, Layout, decode_mask, encode_mask
from fedsieve.wire.schema import (
    MAX_SCHEMAS,
    Hash,
    Part,
    Schema,
    check_kind,
    read_schema,
    schema_of,
)
from fedsieve.wire.tensors import decode_tensors, encode_tensors
from fedsieve.wire.versions import CHANGES, VERSIONS, as_message, bases_of, count_of

MAX_COUNT = 2**63 - 1
_PRECISIONS = tuple(NAMED.values())
Bools: TypeAlias = NDArray[np.bool_]
Recall: TypeAlias = Mapping[Hash, NDArray[Any]]  # masks and versions an end holds, by hash
ANSWERED: Final = 1  # names the message that another answers


class UnheldError(WireError):
    """The frame refers to a schema or mask that this end does not hold."""


class Known(NamedTuple):
    """What the receiver is known to hold; `masks` has versions of values as well."""

    schemas: frozenset[Hash] = frozenset()
    masks: Recall = MappingProxyType({})
    contexts: Contexts = MappingProxyType({})  # of the message that is answered


class Coding(NamedTuple):
    """How float32 values are written.

    Attributes:
        compression: exact by default.
        key: addresses its draws, and those of `Drawn` fields.
        base: the message that this one answers, which both ends hold: of fields that both have,
            differences are compressed.
        change: name of a change that both ends hold, which is added to the base; 0 for none.
    """

    compression: Compression = EXACT
    key: Key = Key(0)
    base: Any = None
    change: Hash = 0


def encode(message: Any, known: Known = Known(), coding: Coding = Coding()) -> Payload:  # noqa: B008
    """A message as bytes. A message without fields takes no bytes at all."""
    roles = fields(type(message))
    if not roles:
        return Payload(b"", 0, 0, 0)
    schema, digest = schema_of(message)
    coding, name_of_base = _based(coding, schema, known.masks)
    bases = bases_of(type(message), coding.base, schema, known.masks.get(coding.change))
    numbers: list[int | float] = []
    masks: list[MaskBlock] = []
    values: list[Pieces] = []
    for (name, role), part in zip(roles, schema.parts, strict=True):
        value = getattr(message, name)
        match role:
            case Whole() | Kept():
                mask = getattr(message, role.where) if isinstance(role, Kept) else {}
                values += encode_tensors(part, value, mask, *_how(name, role, coding, bases))
            case Bit():
                masks.append(_mask_block(part, value, known))
            case Drawn():
                bins, key = _context(part, known.contexts), fold(coding.key, name)
                drawn = encode_drawn(_flat(value), bins, _layout(part), key)
                masks.append(MaskBlock(None, drawn))
            case Number():
                numbers.append(float(value))
            case Natural():
                numbers.append(_count(name, value))
    header = Header(
        digest,
        tuple(mask.length for mask in masks),
        tuple(map(size_of, values)),
        tuple(numbers),
        _declared(coding, name_of_base),
        b"" if digest in known.schemas else schema.packed(),
    )
    return seal(header, masks, [piece for pieces in values for piece in pieces])


def masks_of(message: Any) -> dict[Hash, Bools]:
    """The masks of a message by hash: what both ends hold once it has arrived."""
    if not any(isinstance(field.role, Bit) for field in fields(type(message))):
        return {}
    schema, _ = schema_of(message)
    masks = {}
    for (name, role), part in zip(fields(type(message)), schema.parts, strict=True):
        if isinstance(role, Bit):
            flat = _flat(getattr(message, name))
            masks[_mask_hash(part, flat)] = flat
    return masks


class Decoder:
    """One end's reading side: the schemas it has been told, and how much it is willing to hold."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._bound = Bound(max_bytes)
        self.schemas: dict[Hash, Schema] = {}  # the last used ones, the newest at the end

    def decode(
        self,
        data: bytes | memoryview,
        kind: type,
        recall: Recall | None = None,
        bound: Bound | None = None,
        contexts: Contexts | None = None,
        base: Any = None,
    ) -> Any:
        """The message of class `kind` in `data`, an answer to `base`; learns a schema announced.

        Raises:
            UnheldError: it refers to a schema not told before, a mask that is not in `recall`, or
                probabilities that are not in `contexts`.
            WireError: the bytes are not a valid frame of that class, or beyond the `bound`.
        """
        bound = bound or self._bound
        roles = fields(kind)
        if not roles:
            if len(data):
                raise WireError(f"{kind.__qualname__} has no fields, found {len(data)} bytes.")
            return kind()
        bound.check_frame(len(data))
        sections = open_frame(data)
        schema = self._schema(sections.header, kind, bound)
        coding = _coding(sections.header.precision, schema, recall or {}, base)
        bound.check_compression(coding.compression)
        change = (recall or {}).get(coding.change)
        bases = bases_of(kind, coding.base, schema, change)
        reader = _Reader(sections, coding, bases, recall or {}, contexts or {})
        parts = list(zip(roles, schema.parts, strict=True))
        masks = {
            f.name: reader.mask(part, f.role)
            for f, part in parts
            if isinstance(f.role, Bit | Drawn)
        }
        values = {f.name: reader.field(part, f.role, masks) for f, part in parts}
        reader.finish()
        return kind(**values)

    def learn(self, packed: bytes) -> Hash:
        """Hold a schema told by the peer; returns its hash."""
        schema, digest = read_schema(packed)
        self._bound.check(schema)
        self._use(digest, schema)
        return digest

    def _use(self, digest: Hash, schema: Schema) -> None:
        self.schemas.pop(digest, None)
        self.schemas[digest] = schema
        while len(self.schemas) > MAX_SCHEMAS:
            self.schemas.pop(next(iter(self.schemas)))

    def _schema(self, header: Header, kind: type, bound: Bound) -> Schema:
        if header.announced:
            bound.check_announced(len(header.announced))
            schema, digest = read_schema(header.announced)
            if digest != header.schema:
                raise WireError(
                    f"announced schema has hash {digest:016x}, not {header.schema:016x}."
                )
        elif header.schema in self.schemas:
            schema = self.schemas[header.schema]
        else:
            raise UnheldError(f"schema {header.schema & (2**64 - 1):016x} was never announced.")
        bound.check(schema)
        check_kind(schema, kind)
        self._use(header.schema, schema)
        return schema


class _Reader:
    """Takes fields off the blocks of a frame, in order."""

    def __init__(
        self,
        sections: Sections,
        coding: Coding,
        bases: dict[str, Params],
        recall: Recall,
        contexts: Contexts,
    ) -> None:
        self._masks, self._values = iter(sections.masks), iter(sections.values)
        self._numbers = iter(sections.header.numbers)
        self._coding, self._bases = coding, bases
        self._recall, self._contexts = recall, contexts

    def field(self, part: Part, role: Role, masks: dict[str, Mask]) -> Any:
        match role:
            case Whole() | Kept():
                mask = masks[role.where] if isinstance(role, Kept) else {}
                how = _how(part.name, role, self._coding, self._bases)
                return decode_tensors(part, self._values, mask, *how)
            case Bit() | Drawn():
                return masks[part.name]
            case _:
                return self.number(part.name, role)

    def number(self, name: str, role: Number | Natural) -> int | float:
        value = next(self._numbers, None)
        if isinstance(role, Number) and isinstance(value, float):
            return value
        if isinstance(role, Natural) and isinstance(value, int) and 0 <= value <= MAX_COUNT:
            return value
        raise WireError(f"{name}: expected a {type(role).__name__.lower()}, found {value!r}.")

    def mask(self, part: Part, role: Bit | Drawn) -> Mask:
        layout, size = _layout(part), sum(entry.count for entry in part.entries)
        block = next(self._masks, None)
        if block is None:
            raise WireError(f"{part.name}: its block is missing.")
        coder = block.data[0] if block.base is None and len(block.data) else None
        if coder in {LIKELY, DRAWN}:
            bins = _context(part, self._contexts)
            if bins is None:
                raise UnheldError(f"{part.name}: how likely its bits are is not known here.")
            decoded = decode_drawn if isinstance(role, Drawn) else decode_likely
            flat = decoded(memoryview(block.data), bins)
        elif block.base is None:
            flat = decode_mask(memoryview(block.data), layout)
        else:
            before = self._recall.get(block.base)
            if before is None or before.size != size:
                raise UnheldError(f"{part.name}: mask {block.base:014x} is not held here.")
            flat = decode_change(memoryview(block.data), before, layout)
        pieces = torch.split(torch.from_numpy(flat), [entry.count for entry in part.entries])
        return {e.name: p.reshape(e.shape) for e, p in zip(part.entries, pieces, strict=True)}

    def finish(self) -> None:
        left = tuple(len(list(rest)) for rest in (self._masks, self._values, self._numbers))
        if any(left):
            raise WireError(f"left over: {left} mask blocks, value blocks and numbers.")


class How(NamedTuple):
    """How the float32 values of one field are written."""

    compression: Compression
    key: Key
    base: Params


def _how(name: str, role: Whole | Kept, coding: Coding, bases: dict[str, Params]) -> How:
    if coding.compression == EXACT or (isinstance(role, Whole) and role.exact):
        return How(EXACT, Key(0), {})
    # Draws of its own for each field: products of fields stay unbiased.
    return How(coding.compression, fold(coding.key, name), bases[name])


def _based(coding: Coding, schema: Schema, held: Recall) -> tuple[Coding, Hash]:
    """The coding with the base of its differences, and the name of that."""
    if not isinstance(coding.compression, Lattice):
        return coding, coding.change or (ANSWERED if coding.base is not None else 0)
    count = count_of(schema)
    fitting = [n for n, flat in held.items() if VERSIONS <= n < CHANGES and flat.size == count]
    if not fitting:
        return coding, 0
    return coding._replace(base=as_message(schema, held[fitting[-1]])), fitting[-1]


def _declared(coding: Coding, base: Hash) -> int | Compressed:
    """The coding as a header declares it."""
    if coding.compression in _PRECISIONS and coding.base is None:
        return _PRECISIONS.index(coding.compression)
    return Compressed(str(brief(coding.compression)), coding.key, base)


def _coding(compressed: int | Compressed, schema: Schema, held: Recall, answered: Any) -> Coding:
    """The coding that a header declares."""
    if isinstance(compressed, int):
        if not 0 <= compressed < len(_PRECISIONS):
            raise WireError(f"precision 0 to {len(_PRECISIONS) - 1}, found {compressed}.")
        return Coding(_PRECISIONS[compressed])
    is_change = compressed.base >= CHANGES
    base = answered if compressed.base == ANSWERED or is_change else None
    if compressed.base >= VERSIONS:
        flat = held.get(compressed.base)
        if flat is None or flat.size != count_of(schema):
            base = None
        elif not is_change:
            base = as_message(schema, flat)
    if compressed.base and base is None:
        raise UnheldError("its values are differences to a message that is not held here.")
    try:
        compression = read(compressed.text, KINDS, "compression")
    except ConfigError as error:
        raise WireError(f"compression: {error}") from error
    return Coding(compression, Key(compressed.key), base, compressed.base if is_change else 0)


def _mask_block(part: Part, mask: Mask, known: Known) -> MaskBlock:
    """The mask in the shortest of three ways: by likelihood, as a change, or by itself."""
    flat, bins = _flat(mask), _context(part, known.contexts)
    block = _own_block(part, flat, known.masks)
    if bins is None or not flat.size:
        return block
    likely = MaskBlock(None, encode_likely(flat, bins))
    named = 0 if block.base is None else NAME_BYTES
    return likely if len(likely.data) < len(block.data) + named else block


def _context(part: Part, contexts: Contexts) -> list[Bins] | None:
    """The bins of a mask's bits, by tensor; None unless there is one for each bit."""
    known = contexts.get(part.name, {})
    bins = [known[e.name] for e in part.entries if e.name in known]
    fits = [b.size for b in bins] == [e.count for e in part.entries]
    return bins if bins and fits else None


def _own_block(part: Part, flat: Bools, held: Recall) -> MaskBlock:
    """The mask coded against the nearest one the receiver holds, or by itself."""
    layout = _layout(part)
    same_size = {
        digest: other
        for digest, other in held.items()
        if digest < VERSIONS and other.size == flat.size
    }
    if not same_size or not flat.size:
        return MaskBlock(None, encode_mask(flat, layout))
    changes = {digest: int(np.count_nonzero(other != flat)) for digest, other in same_size.items()}
    digest = min(changes, key=changes.__getitem__)
    return MaskBlock(
        digest, encode_change(flat, same_size[digest], layout) if changes[digest] else b""
    )


def _layout(part: Part) -> Layout:
    """Rows and columns of each tensor: its first dimension counts neurons or filters."""
    shapes = [entry.shape or (1,) for entry in part.entries]
    return tuple(
        (s[0], entry.count // max(s[0], 1)) for s, entry in zip(shapes, part.entries, strict=True)
    )


def _flat(mask: Mask) -> NDArray[Any]:
    arrays = [m.detach().numpy().reshape(-1) for m in mask.values()]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.bool_)


def _mask_hash(part: Part, flat: Bools) -> Hash:
    """Names a mask by its bits and shapes, in as many bytes as a frame has for it."""
    seed = xxhash.xxh3_64_intdigest(repr(_layout(part)).encode())
    return xxhash.xxh3_64_intdigest(np.packbits(flat).data, seed=seed) >> 8 * (8 - NAME_BYTES)


def _count(name: str, value: int) -> int:
    if value != int(value) or not 0 <= value <= MAX_COUNT:
        raise WireError(f"{name}={value}: a Count is a whole number from 0 to {MAX_COUNT}.")
    return int(value)
