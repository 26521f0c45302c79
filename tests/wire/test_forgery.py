"""Bytes that are no message: each is refused by WireError, and none takes much memory."""

import random
import tracemalloc

import msgspec
import pytest
import torch

from fedsieve.core.errors import WireError
from fedsieve.wire.codec import Decoder, encode
from fedsieve.wire.schema import DTYPES
from wire.messages import GOLDEN_SCHEMA, MASK, VALUES, Nothing, Up, forged, sealed, small

LIMIT = 50_000
SLACK = 30_000  # Python objects of the decoder itself: schemas, entries, error texts


def _is_refused(data, kind=Up, decoder=None):
    try:
        (decoder or Decoder(LIMIT)).decode(data, kind)
    except WireError as error:
        return str(error)
    return ""


def _schema(*entries, role="dense"):
    """The golden schema with other tensors in the field `gates`."""
    parts = [list(part) for part in GOLDEN_SCHEMA[0]]
    parts[3] = ["gates", role, list(entries)]
    return [parts]


def test_every_flipped_bit_is_noticed():
    frame = encode(small()).data
    for place in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[place] ^= 1 << bit
            assert _is_refused(bytes(damaged)), (place, bit)


def test_every_shorter_or_longer_frame_is_noticed():
    frame = encode(small()).data
    assert all(_is_refused(frame[:size]) for size in range(len(frame)))
    assert all(_is_refused(frame[size:]) for size in range(1, len(frame)))
    assert all(_is_refused(frame + bytes(size)) for size in range(1, 20))
    assert _is_refused(frame + frame)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": b"FSV2"}, "expected magic b'FSV1'"),
        ({"version": 2}, "expected version 1 flags 0, found 2"),
        ({"flags": 1}, "found 1 flags 1"),
    ],
)
def test_another_format_is_refused_by_name(change, message):
    assert message in _is_refused(sealed(b"", b"", **change))


def _with_header(*, mask_bytes=1, value_bytes=15, numbers=(0.5, 300), more=()):
    packed = msgspec.msgpack.encode(GOLDEN_SCHEMA)
    mark = Decoder().learn(packed)
    header = [mark, mask_bytes, value_bytes, list(numbers), packed, *more]
    return sealed(msgspec.msgpack.encode(header), MASK + VALUES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_with_header(mask_bytes=2), "sections of 2 + 15 bytes declared, 16 present"),
        (_with_header(mask_bytes=2, value_bytes=14), "g: 3 bytes expected, 2 left"),
        (_with_header(mask_bytes=0, value_bytes=16), "1 mask bytes expected, 0 left"),
        (_with_header(mask_bytes=-1, value_bytes=17), "sections of -1 + 17"),
        (_with_header(mask_bytes=2**63, value_bytes=0), "declared"),
        (_with_header(numbers=(0.5,)), "examples: expected a natural, found None"),
        (_with_header(numbers=(0.5, 300, 1)), "1 numbers are left over"),
        (_with_header(numbers=(300, 0.5)), "dual: expected a number, found 300"),
        (_with_header(numbers=(0.5, -1)), "found -1"),
        (_with_header(numbers=(0.5, 2**64 - 1)), "found 18446744073709551615"),
        (_with_header(numbers=(0.5, True)), "header is malformed"),
        (_with_header(more=[1]), "header is malformed"),
        (sealed(b"", MASK + VALUES), "header is malformed"),
        (forged(values=VALUES + b"\0"), "1 value bytes"),
        (forged(values=VALUES[:-1]), "g: 3 bytes expected, 2 left"),
        (forged(mask=b"\x19"), "bits set behind the end of the mask"),
        (forged(mask=b"\x0b"), "left"),  # one more kept value than was sent
        (forged(_schema(["g", "b1", [3]]), values=VALUES), "neither 0 nor 1"),
    ],
)
def test_a_forged_frame_is_refused_with_its_fault(data, message):
    assert message in _is_refused(data)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_schema(["g", "f4", [2**40]]), f"{4 * 2**40 + 24} bytes announced"),
        (_schema(["g", "f4", [LIMIT // 4 + 1]]), f"this receiver takes {LIMIT}"),
        (_schema(*[[str(i), "f8", [1000]] for i in range(7)]), "bytes announced"),
        (_schema(["g", "f4", [2**62, 4]]), "impossible shape"),
        (_schema(["g", "f4", [0, 2**64 - 1]]), "impossible shape"),
        (_schema(["g", "f4", [0, *[2**40] * 7]]), "impossible shape"),
        (_schema(["g", "f4", [-1, -3]]), "impossible shape"),
        (_schema(["g", "f4", [1] * 9]), "impossible shape"),
        (_schema(["g", "O8", [3]]), "unknown type 'O8'"),
        (_schema(["g", "", [3]]), "unknown type ''"),
        (_schema(["g", "u1", [3], 0]), "malformed"),
        (_schema(["g", "u1", [3.0]]), "malformed"),
        (_schema(["g", "u1"]), "malformed"),
        (_schema(["g", "u1", [3]], role="bits"), "mask of type 'u1'"),
        (_schema(["w", "u1", [3]], role="kept:mask"), "mask of (2, 2) for (3,)"),
        (_schema(["g", "u1", [3]], role="count"), "expected a Up message"),
        ([GOLDEN_SCHEMA[0][:4]], "expected a Up message"),
        ([[]], "expected a Up message"),
        ([], "malformed"),
        ({"parts": []}, "malformed"),
        (b"\x91" * 100_000, "malformed"),
        (b"\x91\x91\x93\xa1\xff\xa5dense\x90", "malformed"),  # a name that is not UTF-8
        (b"\xc1", "malformed"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(schema, message):
    assert message in _is_refused(forged(schema))


def test_deeply_nested_headers_are_refused():
    for depth in (10, 1000, 100_000):
        for start in (b"", b"\x95", b"\x95\x00\x00\x00", b"\x96\x00\x00\x00\x90\xc4\x00"):
            assert _is_refused(sealed(start + b"\x91" * depth + b"\x00", b""))


def test_a_schema_under_a_wrong_name_is_not_learnt():
    packed = msgspec.msgpack.encode(GOLDEN_SCHEMA)
    header = [0, len(MASK), len(VALUES), [0.5, 300], packed]
    decoder = Decoder()
    frame = sealed(msgspec.msgpack.encode(header), MASK + VALUES)
    assert "announced schema has hash" in _is_refused(frame, decoder=decoder)
    assert decoder.schemas == {}


def test_a_message_without_fields_admits_no_frame():
    assert _is_refused(encode(small()).data, Nothing)
    assert _is_refused(b"", Up)


SIZES = (0, 1, 3, 200, 70_000, -1, 2**31, 2**40, 2**63, 2**64 - 1)
JUNK = (*SIZES, 1.5, None, True, "f4", b"", b"\xff", [], {})


def _mutated(value, dice):
    """A copy of nested lists with one place changed, doubled, dropped or wrapped."""
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        change = dice.choice([[_mutated(value[at], dice)]] * 5 + [[], [value[at]] * 2])
        return [*value[:at], *change, *value[at + 1 :]]
    return dice.choice([dice.choice(JUNK), [value]])


def _scrambled(data, dice):
    """Bytes with a few places changed, some cut off or some added."""
    changed = bytearray(data)
    for _ in range(dice.randint(0, 3)):
        if changed:
            changed[dice.randrange(len(changed))] = dice.randrange(256)
    if dice.random() < 0.3:
        del changed[dice.randrange(len(changed) + 1) :]
    return bytes(changed) + (dice.randbytes(dice.randint(1, 9)) if dice.random() < 0.3 else b"")


def _forgery(dice):
    """A frame with a right checksum in which something else may be wrong."""
    packed = msgspec.msgpack.encode(GOLDEN_SCHEMA)
    mask, values = MASK, VALUES
    match dice.randrange(6):
        case 0:
            return forged(_mutated(GOLDEN_SCHEMA, dice))
        case 1:
            return forged(_scrambled(packed, dice))
        case 2:
            return forged(mask=_scrambled(MASK, dice), values=_scrambled(VALUES, dice))
        case 3:
            shape = dice.choices(SIZES, [5, 5, 5, 5, 1, 1, 1, 1, 1, 1], k=dice.randint(0, 4))
            role = dice.choice(["dense", "dense", "bits", "kept:mask", "kept:", "count"])
            schema = _schema([dice.choice("gw"), dice.choice([*DTYPES, "x"]), shape], role=role)
            return forged(schema, values=VALUES + bytes(dice.choice([0, 0, 1, 200, 3200])))
        case 4:
            mark = Decoder().learn(packed)
            header = _mutated([mark, len(mask), len(values), [0.5, 300], packed], dice)
            return sealed(msgspec.msgpack.encode(header), mask + values)
    inside = encode(small()).data[12:-8]
    cut = dice.randint(0, len(inside))
    return sealed(_scrambled(inside[:cut], dice), inside[cut:])


def test_two_thousand_forgeries_raise_wire_error_or_decode_within_twice_the_limit():
    dice, refused = random.Random(0), 0
    tracemalloc.start()
    try:
        for number in range(2000):
            frame = _forgery(dice)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            refused += bool(_is_refused(frame))
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 2 * LIMIT + SLACK, (number, frame.hex())
    finally:
        tracemalloc.stop()
    assert refused > 1000


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_decoding_takes_at_most_twice_the_dense_size(density):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(50, 20, 10, 10, generator=generator)
    mask = torch.rand(weights.shape, generator=generator) < density
    data = encode(small()._replace(weights={"w": weights}, mask={"w": mask})).data
    Decoder().decode(data, Up)
    tracemalloc.start()
    try:
        Decoder().decode(data, Up)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    dense = 4 * weights.numel() + mask.numel()
    assert dense <= peak < 2 * dense  # a peak below the tensors would mean nothing was measured
