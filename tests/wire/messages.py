"""Messages that the wire tests share, and ways to forge and to damage frames."""

import struct
from typing import Annotated, NamedTuple

import msgspec
import torch
import xxhash

from fedsieve.core.message import Bits, Count, Dense, Kept, Params, Scalar


class Up(NamedTuple):
    """One field of each role; the values come before their mask."""

    weights: Annotated[Params, Kept(where="mask")]
    dual: Scalar
    mask: Bits
    gates: Dense
    examples: Count


class Nothing(NamedTuple):
    """A message without fields."""


def small():
    """The message of which GOLDEN_SCHEMA is the schema."""
    return Up(
        weights={"w": torch.tensor([[1.5, 0.0], [0.0, -2.0]]), "b": torch.tensor([0.25])},
        dual=0.5,
        mask={"w": torch.tensor([[True, False], [False, True]])},
        gates={"g": torch.tensor([7, 8, 9], dtype=torch.uint8)},
        examples=300,
    )


GOLDEN_SCHEMA = [
    [
        ["weights", "kept:mask", [["w", "f4", [2, 2]], ["b", "f4", [1]]]],
        ["dual", "scalar", []],
        ["mask", "bits", [["w", "b1", [2, 2]]]],
        ["gates", "dense", [["g", "u1", [3]]]],
        ["examples", "count", []],
    ]
]
MASK = bytes([2, 0b1001])  # a bitmap: position i is bit i, lowest first
FLOATS = bytes([0]) + struct.pack("<3f", 1.5, -2.0, 0.25)  # as they are
GATES = bytes([7, 8, 9])  # no tag: values that are not float32 stand raw


def sealed(header: bytes, blocks: bytes, magic=b"FSV1", version=5, flags=0) -> bytes:
    """A frame with a right checksum around anything."""
    body = struct.pack("<4sHHI", magic, version, flags, len(header)) + header + blocks
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def forged(
    schema=GOLDEN_SCHEMA, mask=MASK, floats=FLOATS, others=GATES, names=b"", more=(), **changes
):
    """A frame that is consistent but for the `changes` of its header; bytes are taken as packed."""
    packed = schema if isinstance(schema, bytes) else msgspec.msgpack.encode(schema)
    header = {
        "mark": xxhash.xxh3_64_intdigest(packed),
        "masks": [len(mask)],
        "values": [len(floats), len(others)],
        "numbers": [0.5, 300],
        "precision": 0,
        "announced": packed,
    } | changes
    blocks = names + mask + floats + others
    return sealed(msgspec.msgpack.encode([*header.values(), *more]), blocks)


def damaged(rng, data):
    """A copy of `data` with some bytes changed, cut off, added, or all replaced."""
    new = bytearray(data)
    match rng.integers(5):
        case 0:
            new[rng.integers(len(new))] ^= 1 << rng.integers(8)
        case 1:
            for _ in range(rng.integers(1, 6)):
                new[rng.integers(min(len(new), 32))] = rng.integers(256)
        case 2:
            del new[rng.integers(len(new)) :]
        case 3:
            new += rng.bytes(rng.integers(1, 9))
        case _:
            new[1:] = rng.bytes(rng.integers(0, 60))
            new[0] = rng.integers(9)
    return memoryview(bytes(new))
