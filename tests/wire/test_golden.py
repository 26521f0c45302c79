"""Golden frames: every byte derived from the documented layout, and committed.

A change of the format fails here: frames on disk or from other machines would no longer be read.
"""

import struct
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import xxhash

from fedsieve.core import tree
from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key
from fedsieve.core.message import Dense, Exact
from fedsieve.wire.codec import Coding, Decoder, Known, encode, masks_of
from fedsieve.wire.compressors import NAMED
from fedsieve.wire.frame import MAGIC, VERSION
from fedsieve.wire.precision import PRECISIONS
from fedsieve.wire.schema import DTYPES, schema_of
from wire.messages import FLOATS, GATES, GOLDEN_SCHEMA, MASK, Up, forged, small


class Rounded(NamedTuple):
    """Rounded and exact values."""

    weights: Dense
    shares: Exact


# msgpack by hand: short lists, short texts, short bytes, 64-bit numbers (big-endian) and floats.


def listed(*items):
    return bytes([0x90 + len(items)]) + b"".join(items)


def text(word):
    return bytes([0xA0 + len(word)]) + word.encode()


def binary(data):
    return b"\xc4" + bytes([len(data)]) + data


def u64(number):
    return b"\xcf" + struct.pack(">Q", number)


def f64(number):
    return b"\xcb" + struct.pack(">d", number)


def u16(number):
    return b"\xcd" + struct.pack(">H", number)


def tiny(number):
    return bytes([number])  # below 128


def entry(name, dtype, *shape):
    return listed(text(name), text(dtype), listed(*map(tiny, shape)))


def part(name, role, *entries):
    return listed(text(name), text(role), listed(*entries))


UP_SCHEMA = listed(
    listed(
        part("weights", "kept:mask", entry("w", "f4", 2, 2), entry("b", "f4", 1)),
        part("dual", "scalar"),
        part("mask", "bits", entry("w", "b1", 2, 2)),
        part("gates", "dense", entry("g", "u1", 3)),
        part("examples", "count"),
    )
)
ROUNDED_SCHEMA = listed(
    listed(
        part("weights", "dense", entry("w", "f4", 5)),
        part("shares", "exact", entry("s", "f4", 2)),
    )
)


def framed(header, *blocks):
    """Fixed part, header, blocks, checksum."""
    body = b"FSV1" + struct.pack("<HHI", 5, 0, len(header)) + header + b"".join(blocks)
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def whole_frame():
    """small(): float32, its schema announced, its mask by itself."""
    header = listed(
        u64(xxhash.xxh3_64_intdigest(UP_SCHEMA)),
        listed(tiny(2)),  # one mask block: BITMAP, four bits
        listed(tiny(13), tiny(3)),  # weights: RAW, three floats; gates: three bytes
        listed(f64(0.5), u16(300)),  # dual and examples
        tiny(0),  # fp32
        binary(UP_SCHEMA),
    )
    return framed(
        header,
        bytes([2, 0b1001]),
        bytes([0]) + struct.pack("<3f", 1.5, -2, 0.25),
        bytes([7, 8, 9]),
    )


def change_frame():
    """The same layout again, int8, the receiver holding schema and mask."""
    layout = xxhash.xxh3_64_intdigest(b"((2, 2),)")  # rows and columns, as Python writes them
    mask = xxhash.xxh3_64_intdigest(bytes([0b10010000]), seed=layout)  # highest bit first
    name = struct.pack("<Q", mask)[1:]  # all but the lowest byte
    header = listed(
        u64(xxhash.xxh3_64_intdigest(UP_SCHEMA)),
        listed(b"\xff"),  # -1: nothing changes in a mask that is held
        listed(tiny(8), tiny(3)),  # a scale, RAW and three numbers; gates
        listed(f64(0.5), u16(300)),
        tiny(3),  # int8
        binary(b""),  # the schema is known
    )
    return framed(
        header,
        name,
        struct.pack("<f", 127) + bytes([0]) + struct.pack("3b", 127, -64, 3),
        bytes([7, 8, 9]),
    )


def rounded_frame():
    """bfloat16 is the upper half of a float32; exact fields stay whole."""
    halves = [bits >> 16 for bits in struct.unpack("<5I", struct.pack("<5f", 1, -2, 0.5, 3, 0))]
    header = listed(
        u64(xxhash.xxh3_64_intdigest(ROUNDED_SCHEMA)),
        listed(),
        listed(tiny(11), tiny(9)),  # RAW and 5 * 2 bytes; RAW and 2 * 4 bytes
        listed(),
        tiny(1),  # bf16
        binary(ROUNDED_SCHEMA),
    )
    return framed(
        header,
        bytes([0]) + struct.pack("<5H", *halves),
        bytes([0]) + struct.pack("<2f", 0.1, 0.9),
    )


def changed():
    weights = {"w": torch.tensor([[127.0, 0], [0, -64]]), "b": torch.tensor([3.0])}
    return small()._replace(weights=weights)  # whole numbers of 127ths of the largest: no draw


def rounded():
    weights = torch.tensor([1 + 2**-9, -2, 0.5, 3, 0])  # the first rounds to 1
    return Rounded({"w": weights}, {"s": torch.tensor([0.1, 0.9])})


WHOLE = (
    "46535631050000009000000096cfa4f2f29699eb2b739102920d0392cb3fe0000000000000cd012c00c47191"
    "9593a777656967687473a96b6570743a6d61736b9293a177a2663492020293a162a26634910193a46475616c"
    "a67363616c61729093a46d61736ba4626974739193a177a2623192020293a56761746573a564656e73659193"
    "a167a27531910393a86578616d706c6573a5636f756e74900209000000c03f000000c00000803e0708094719"
    "d3b8cb5c50c7"
)
CHANGE = (
    "46535631050000001f00000096cfa4f2f29699eb2b7391ff92080392cb3fe0000000000000cd012c03c4001e"
    "f865270166a60000fe42007fc00307080982f89172a414d6a4"
)
ROUNDED = (
    "46535631050000004300000096cfa62dee7333dbcfd990920b099001c431919293a777656967687473a56465"
    "6e73659193a177a26634910593a6736861726573a565786163749193a173a26634910200803f00c0003f4040"
    "000000cdcccc3d6666663f320bbc38bf3776e0"
)
KNOWN = Known(frozenset({schema_of(small())[1]}), masks_of(small()))
FRAMES = {
    "whole": (whole_frame, encode(small()).data, Up, WHOLE),
    "change": (
        change_frame,
        encode(changed(), KNOWN, Coding(NAMED["int8"], Key(1))).data,
        Up,
        CHANGE,
    ),
    "rounded": (
        rounded_frame,
        encode(rounded(), coding=Coding(NAMED["bf16"])).data,
        Rounded,
        ROUNDED,
    ),
}


def received(name, data):
    decoder = Decoder()
    decoder.learn(UP_SCHEMA)
    return decoder.decode(data, FRAMES[name][2], masks_of(small()))


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_derived_committed_and_written_alike(name):
    derive, written, _, committed = FRAMES[name]
    assert derive().hex() == committed
    assert written.hex() == committed


@pytest.mark.parametrize("name", FRAMES)
def test_a_committed_frame_is_read(name):
    found = received(name, bytes.fromhex(FRAMES[name][3]))
    sent = {"whole": small(), "change": changed(), "rounded": rounded()}[name]
    if name == "rounded":
        sent.weights["w"][0] = 1
    assert tree.equal(found, sent)


@pytest.mark.parametrize("name", FRAMES)
def test_a_committed_frame_with_another_byte_is_not_read(name):
    golden = bytes.fromhex(FRAMES[name][3])
    for place in range(len(golden)):
        other = golden[:place] + bytes([golden[place] ^ 0x55]) + golden[place + 1 :]
        with pytest.raises(WireError):
            received(name, other)


def test_the_hand_written_msgpack_is_msgpack():
    assert msgspec.msgpack.encode(GOLDEN_SCHEMA) == UP_SCHEMA
    assert forged() == whole_frame()
    assert (MASK, FLOATS[:1], GATES) == (b"\x02\x09", b"\0", b"\x07\x08\x09")


def test_numbers_in_frames_keep_their_meaning():
    assert (MAGIC, VERSION) == (b"FSV1", 5)
    assert PRECISIONS == ("fp32", "bf16", "fp16", "int8")
    assert list(DTYPES) == ["f4", "f8", "f2", "i4", "i8", "u1", "b1"]
    for code, dtype in DTYPES.items():
        assert torch.from_numpy(np.zeros(1, code)).dtype == dtype
