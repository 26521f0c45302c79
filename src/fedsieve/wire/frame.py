"""The frame around a message's sections.

    magic "FSV1" | version u16 | flags u16 | header length u32 | header | mask | values | xxh3-64

Integers are little-endian; the header is a typed msgpack array. Section lengths must add up to the
frame, and nothing is read before the checksum has been verified. The checksum finds damage, not
forgery: integrity against attackers is the transport's job.
"""

import struct
from typing import NamedTuple

import msgspec
import xxhash

from fedsieve.core.errors import WireError

MAGIC = b"FSV1"
VERSION = 1
_FIXED = struct.Struct("<4sHHI")
_CHECK = struct.Struct("<Q")


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is needed to read the sections."""

    schema: int  # xxh3-64 of the packed schema
    mask_bytes: int
    value_bytes: int
    numbers: tuple[int | float, ...] = ()  # Scalar and Count fields in order
    announced: bytes = b""  # the packed schema, where the receiver may not know it


class Payload(NamedTuple):
    """An encoded message and what its bytes are; the parts add up to len(data)."""

    data: bytes
    header_bytes: int
    mask_bytes: int
    value_bytes: int


class Sections(NamedTuple):
    header: Header
    mask: memoryview
    values: memoryview


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def seal(header: Header, sections: list[bytes | memoryview]) -> Payload:
    """Join header and sections and add the checksum."""
    packed = _encoder.encode(header)
    pieces = [_FIXED.pack(MAGIC, VERSION, 0, len(packed)), packed, *sections]
    checksum = xxhash.xxh3_64()
    for piece in pieces:
        checksum.update(piece)
    data = b"".join((*pieces, _CHECK.pack(checksum.intdigest())))
    around = len(data) - header.mask_bytes - header.value_bytes
    return Payload(data, around, header.mask_bytes, header.value_bytes)


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
    if min(header.mask_bytes, header.value_bytes) < 0 or (
        header.mask_bytes + header.value_bytes != end - start
    ):
        raise WireError(
            f"sections of {header.mask_bytes} + {header.value_bytes} bytes declared, "
            f"{end - start} present."
        )
    middle = start + header.mask_bytes
    return Sections(header, view[start:middle], view[middle:end])
