"""The frame around a message's sections.

    magic "FSV1" | version u16 | flags u16 | header length u32 | header | masks | values | xxh3-64

Integers are little-endian; the header is a typed msgpack array. Block lengths must add up to the
frame, and nothing is read before the checksum has been verified. The checksum finds damage, not
forgery: integrity against attackers is the transport's job.
"""

import struct
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
import xxhash

from fedsieve.core.errors import WireError

MAGIC = b"FSV1"
VERSION = 1
_FIXED = struct.Struct("<4sHHI")
_CHECK = struct.Struct("<Q")

# Checked before a list is read: else each byte of a header might take hundreds in memory.
_FEW = msgspec.Meta(max_length=1024)
_Ints: TypeAlias = Annotated[tuple[int, ...], _FEW]


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is needed to read the sections."""

    schema: int  # xxh3-64 of the packed schema
    masks: _Ints  # lengths of the mask blocks
    values: _Ints  # lengths of the value blocks
    bases: _Ints  # for each mask block, the mask it changes, or 0
    numbers: Annotated[tuple[int | float, ...], _FEW]  # Scalar and Count fields in order
    precision: int  # of float32 values, an index into PRECISIONS
    announced: bytes  # the packed schema, where the receiver may not know it


class Payload(NamedTuple):
    """An encoded message and what its bytes are; the parts add up to len(data)."""

    data: bytes
    header_bytes: int
    mask_bytes: int
    value_bytes: int


class Sections(NamedTuple):
    header: Header
    masks: list[memoryview]
    values: list[memoryview]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def seal(header: Header, blocks: list[bytes]) -> Payload:
    """Join header and blocks and add the checksum."""
    packed = _encoder.encode(header)
    pieces = [_FIXED.pack(MAGIC, VERSION, 0, len(packed)), packed, *blocks]
    checksum = xxhash.xxh3_64()
    for piece in pieces:
        checksum.update(piece)
    data = b"".join((*pieces, _CHECK.pack(checksum.intdigest())))
    masks, values = sum(header.masks), sum(header.values)
    return Payload(data, len(data) - masks - values, masks, values)


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
        raise WireError(f"expected version {VERSION} flags 0, found {version} flags {flags}.")
    (checksum,) = _CHECK.unpack_from(view, len(view) - _CHECK.size)
    found = xxhash.xxh3_64_intdigest(view[: -_CHECK.size])
    if checksum != found:
        raise WireError(f"checksum {checksum:016x} does not match the bytes ({found:016x}).")
    start, end = _FIXED.size + header_bytes, len(view) - _CHECK.size
    if start > end:
        raise WireError(f"header of {header_bytes} bytes does not fit a frame of {len(view)}.")
    try:
        header = _decoder.decode(view[_FIXED.size : start])
    except msgspec.MsgspecError as error:
        raise WireError(f"header is malformed: {error}") from error
    lengths = header.masks + header.values
    if any(length < 0 for length in lengths) or sum(lengths) != end - start:
        raise WireError(
            f"blocks of {header.masks} and {header.values} bytes declared, {end - start} present."
        )
    blocks = []
    for length in lengths:
        blocks.append(view[start : start + length])
        start += length
    return Sections(header, blocks[: len(header.masks)], blocks[len(header.masks) :])
