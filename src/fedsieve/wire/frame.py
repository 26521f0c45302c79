"""The frame around a message's sections.

    magic "FSV1" | version u16 | flags u16 | header length u32 | header | names | masks | values
    | xxh3-64

Integers are little-endian; the header is a typed msgpack array. A mask coded as the change of one
that the receiver holds has the 7-byte name of that one among the names, and its length n stands in
the header as -1 - n: an unchanged mask takes 8 bytes in all. Lengths must add up to the frame, and
nothing is read before the checksum has been verified. The checksum finds damage, not forgery:
integrity against attackers is the transport's job.
"""

import struct
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
import xxhash

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import Pieces, Reader

MAGIC = b"FSV1"
VERSION = 5
NAME_BYTES = 7  # of a held mask
_FIXED = struct.Struct("<4sHHI")
_CHECK = struct.Struct("<Q")

# Checked before a list is read: else each byte of a header might take hundreds in memory.
_FEW = msgspec.Meta(max_length=1024)
_Ints: TypeAlias = Annotated[tuple[int, ...], _FEW]


class Compressed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How float32 values are written where it is none of PRECISIONS."""

    text: Annotated[str, msgspec.Meta(max_length=256)]  # the compressor with its parameters
    key: int  # of its draws
    # To which they are differences: 0 none, 1 the message it answers, the name of a held version,
    # or that of a held change, which is added to the message it answers.
    base: int


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is needed to read the sections."""

    schema: int  # xxh3-64 of the packed schema
    masks: _Ints  # lengths of the mask blocks; -1 - length where a held mask is changed
    values: _Ints  # lengths of the value blocks
    numbers: Annotated[tuple[int | float, ...], _FEW]  # Scalar and Count fields in order
    precision: int | Compressed  # of float32 values: an index into PRECISIONS, or other
    announced: bytes  # the packed schema, where the receiver may not know it


class Payload(NamedTuple):
    """An encoded message and what its bytes are; the parts add up to len(data)."""

    data: bytes
    header_bytes: int
    mask_bytes: int
    value_bytes: int


class MaskBlock(NamedTuple):
    """A coded mask; `base` names the held one that it changes, if it does."""

    base: int | None
    data: bytes | memoryview

    @property
    def length(self) -> int:
        """Its length as the header has it."""
        return len(self.data) if self.base is None else ~len(self.data)


class Sections(NamedTuple):
    header: Header
    masks: list[MaskBlock]
    values: list[memoryview]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def seal(header: Header, masks: list[MaskBlock], values: Pieces) -> Payload:
    """Join header, masks and the pieces of all value blocks, and add the checksum."""
    packed = _encoder.encode(header)
    names = [m.base.to_bytes(NAME_BYTES, "little") for m in masks if m.base is not None]
    blocks = [mask.data for mask in masks]
    pieces = [_FIXED.pack(MAGIC, VERSION, 0, len(packed)), packed, *names, *blocks, *values]
    checksum = xxhash.xxh3_64()
    for piece in pieces:
        checksum.update(piece)
    data = b"".join((*pieces, _CHECK.pack(checksum.intdigest())))
    mask_bytes, value_bytes = sum(map(len, blocks)), sum(header.values)
    return Payload(data, len(data) - mask_bytes - value_bytes, mask_bytes, value_bytes)


def open_frame(data: bytes | memoryview) -> Sections:
    """Check a frame and find its sections.

    Raises:
        WireError: anything about the frame is not as it must be.
    """
    view = memoryview(data)
    if len(view) < _FIXED.size + _CHECK.size:
        raise WireError(f"frame of {len(view)} bytes is shorter than the smallest possible one.")
    magic, version, flags, header_bytes = _FIXED.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"expected magic {MAGIC!r}, found {bytes(magic)!r}.")
    if version != VERSION or flags:
        raise WireError(
            f"expected version {VERSION} flags 0, found {version} flags {flags}: "
            "frames are read by the release of fedsieve that wrote them."
        )
    (checksum,) = _CHECK.unpack_from(view, len(view) - _CHECK.size)
    computed = xxhash.xxh3_64_intdigest(view[: -_CHECK.size])
    if checksum != computed:
        raise WireError(f"checksum {checksum:016x} does not match the bytes ({computed:016x}).")
    start, end = _FIXED.size + header_bytes, len(view) - _CHECK.size
    if start > end:
        raise WireError(f"header of {header_bytes} bytes does not fit a frame of {len(view)}.")
    try:
        header = _decoder.decode(view[_FIXED.size : start])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"header is malformed: {error}") from error
    lengths = [~length if length < 0 else length for length in header.masks]
    named = NAME_BYTES * sum(length < 0 for length in header.masks)
    if min(header.values, default=0) < 0 or named + sum(lengths, sum(header.values)) != end - start:
        raise WireError(
            f"blocks of {header.masks} and {header.values} bytes declared, {end - start} present."
        )
    body = Reader(view[start:end], "frame")
    bases = [
        int.from_bytes(body.take(NAME_BYTES), "little") if length < 0 else None
        for length in header.masks
    ]
    masks = [MaskBlock(base, body.take(n)) for base, n in zip(bases, lengths, strict=True)]
    return Sections(header, masks, [body.take(length) for length in header.values])
