"""Bytes that are no message: each is refused by WireError, and none takes much memory."""

import sys
import time
import tracemalloc
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import xxhash

from fedsieve.core.errors import WireError
from fedsieve.core.message import Bits, Kept, Params
from fedsieve.wire.bits import count_bytes
from fedsieve.wire.bound import Bound
from fedsieve.wire.codec import Coding, Decoder, Known, encode, masks_of
from fedsieve.wire.compressors import NAMED
from fedsieve.wire.halves import COARSE, FINE
from fedsieve.wire.masks import FLAT, LAYERS, ROWS, decode_mask, encode_mask
from fedsieve.wire.precision import PRECISIONS
from fedsieve.wire.schema import Entry, schema_of
from fedsieve.wire.symbols import ZSTD
from wire.messages import FLOATS, GATES, GOLDEN_SCHEMA, MASK, Nothing, Up, forged, sealed, small

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_flipped_bit_is_noticed(precision):
    frame = encode(small(), Known(masks=masks_of(small())), Coding(NAMED[precision])).data
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
        ({"version": 1}, "expected version 5 flags 0, found 1"),
        ({"flags": 1}, "found 5 flags 1"),
    ],
)
def test_another_format_is_refused_by_name(change, message):
    assert message in _is_refused(sealed(b"", b"", **change))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (forged(masks=[3]), "blocks of (3,) and (13, 3) bytes declared, 18 present"),
        (forged(masks=[3], values=[12, 3]), "mask: 1 bytes are left over"),
        (forged(masks=[1], values=[14, 3]), "mask: 1 bytes expected, 0 left"),
        (forged(masks=[-1], values=[16, 3]), "blocks of (-1,)"),  # no name
        (forged(masks=[-10], values=[-1, 3]), "blocks of (-10,) and (-1, 3)"),
        (forged(masks=[2**63], values=[]), "declared"),
        (forged(masks=[], values=[2, 13, 3]), "mask: its block is missing"),
        (forged(others=b"", values=[13]), "gates: its block is missing"),
        (forged(values=[13, 3, 0]), "left over: (0, 1, 0) mask blocks"),
        (forged(masks=[2, 0]), "left over: (1, 0, 0) mask blocks"),
        (forged(masks=[0] * 2000), "header is malformed: Expected `array` of length <= 1024"),
        (forged(values=[13, 2, 1]), "g: 3 bytes expected, 2 left"),
        (forged(masks=[-3], names=b"\1" + bytes(6)), "mask 00000000000001 is not held here"),
        (forged(masks=[-3], names=b"\xff" * 7), "mask ffffffffffffff is not held here"),
        (forged(masks=[-3], names=bytes(8)), "blocks of (-3,) and (13, 3) bytes declared, 26"),
        (forged(masks=[0.5]), "header is malformed"),
        (forged(precision=4), "precision 0 to 3, found 4"),
        (forged(precision=-1), "precision 0 to 3, found -1"),
        (forged(precision=1), "6 bytes are left over"),  # halves of what was expected
        (forged(precision=3), "values of kind 'i1'"),
        (forged(precision="bf16"), "header is malformed"),
        (forged(numbers=[0.5]), "examples: expected a natural, found None"),
        (forged(numbers=[0.5, 300, 1]), "left over: (0, 0, 1)"),
        (forged(numbers=[300, 0.5]), "dual: expected a number, found 300"),
        (forged(numbers=[0.5, -1]), "found -1"),
        (forged(numbers=[0.5, 2**64 - 1]), "found 18446744073709551615"),
        (forged(numbers=[0.5, True]), "header is malformed"),
        (forged(more=[1]), "header is malformed"),
        (sealed(b"", MASK + FLOATS + GATES), "header is malformed"),
        (forged(others=GATES + b"\0"), "gates: 1 bytes are left over"),
        (forged(others=GATES[:-1]), "g: 3 bytes expected, 2 left"),
        (forged(mask=b"\x02\x19"), "bits set behind the end of 4 positions"),
        (forged(mask=b"\x02\x0b"), "16 bytes expected, 12 left"),  # one more kept than was sent
        (forged(_schema(["g", "b1", [3]])), "neither 0 nor 1"),
        (forged(announced=b""), "was never announced"),
        (forged(announced=b"\x91\x90"), "announced schema has hash"),
    ],
)
def test_a_forged_frame_is_refused_with_its_fault(data, message):
    assert message in _is_refused(data)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_schema(["g", "f4", [2**40]]), f"{4 * 2**40 + 24} bytes announced"),
        (_schema(["g", "u1", [3]], ["g", "u1", [4]]), "gates has two tensors of one name"),
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
    decoder = Decoder()
    assert "announced schema has hash" in _is_refused(forged(mark=0), decoder=decoder)
    assert decoder.schemas == {}


def test_a_message_without_fields_admits_no_frame():
    assert _is_refused(encode(small()).data, Nothing)
    assert _is_refused(b"", Up)


def test_ten_thousand_forgeries_raise_wire_error_or_decode_to_the_right_shape(fuzz):
    sources = fuzz.make_sources()
    cases = (fuzz.make_case(sources, 0, number) for number in range(10_000))
    with np.errstate(all="raise", under="ignore"):
        refused = sum(map(fuzz.is_refused, cases))
    assert 8_000 < refused < 10_000  # some only change values: that is the transport's to prevent


def test_forgeries_take_at_most_twice_the_memory_of_the_message(fuzz):
    sources = fuzz.make_sources()
    for number in range(1_000):
        fuzz.check_memory(fuzz.make_case(sources, 1, number))


@pytest.mark.parametrize("data", [bytes(2**26), b"\0" * 2000])
@pytest.mark.parametrize("tag", [FINE, COARSE, ZSTD])
def test_a_bomb_is_stopped_at_the_size_of_the_message(tag, data):
    bomb = zstd.compress(data, 19)
    size = count_bytes(len(bomb))
    frame = (
        forged(floats=bytes([0, 0, 0, 0, tag]) + size + bomb, precision=3)  # behind a scale
        if tag == ZSTD
        else forged(floats=bytes([tag, 0, 0]) + size + b"\0" + bomb)
    )
    tracemalloc.start()
    try:
        fault = _is_refused(frame)
        assert "3 symbols expected" in fault or "memory" in fault
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SLACK


def test_a_header_takes_little_more_memory_than_the_frame():
    for field in ("masks", "values", "numbers"):
        frame = forged(**{field: [0] * 100_000})
        tracemalloc.start()
        try:
            assert _is_refused(frame)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < len(frame) + SLACK


class _Open(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]


def _few_bytes(shape, mask=b"\0", floats=b"", precision=0):
    """A consistent frame that declares tensors of any shape."""
    entries = [["mask", "bits", [["w", "b1", shape]]], ["weights", "kept:mask", []]]
    entries[1][2] += [["w", "f4", shape]]
    packed = msgspec.msgpack.encode([entries])
    mark = xxhash.xxh3_64_intdigest(packed)
    header = [mark, [len(mask)], [len(floats)], [], precision, packed]
    return sealed(msgspec.msgpack.encode(header), mask + floats)


# As an unbounded decoder took them: a minute and 9 GB, a raw MemoryError, 4 GiB twice.
BOMBS = {
    "rows without columns": _few_bytes([2**30, 0], bytes([ROWS, 1])),
    "more rows than memory": _few_bytes([2**40, 0], bytes([ROWS, 1])),
    "nothing of much": _few_bytes([2**29]),
    "zeros, chunk by chunk": _few_bytes([2**29], b"\1", b"\3\1\0" * 2**12),
    "one flag for all": _few_bytes([1, 2**29], bytes([ROWS, 0])),
    "certain bits by ANS": _few_bytes([2**29], bytes([FLAT, 0, 0])),
    "int8 scales": _few_bytes([2**29], b"\1", bytes(8192), precision=3),
}
ASKED = {
    "mask": frozenset({Entry("w", "b1", (64, 500))}),
    "weights": frozenset({Entry("w", "f4", (64, 500))}),
}


@pytest.mark.parametrize("bound", [Bound(0, ASKED), Bound(5 * 64 * 500)], ids=["asked", "open"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_take_no_more_than_what_was_asked_for(name, bound):
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(WireError, match=r"asked for, w\.|bytes announced"):
            Decoder().decode(BOMBS[name], _Open, bound=bound)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(BOMBS[name]) < 13_000
    assert peak < SLACK
    assert time.process_time() - started < 0.5


def test_a_schema_told_before_is_held_to_what_is_asked_now():
    decoder, large = Decoder(), _Open({}, {"w": torch.zeros(900)})
    mark = decoder.learn(schema_of(large)[0].packed())
    data = encode(large, Known(frozenset({mark}))).data
    assert decoder.decode(data, _Open, bound=Bound(3600)).weights["w"].numel() == 900
    with pytest.raises(WireError, match="3600 bytes announced, this receiver takes 3599"):
        decoder.decode(data, _Open, bound=Bound(3599))


def test_a_schema_beyond_the_bound_is_not_learnt():
    decoder = Decoder()
    with pytest.raises(WireError, match="announced"):
        decoder.decode(BOMBS["nothing of much"], _Open, bound=Bound(1000))
    assert decoder.schemas == {}


def test_a_mask_may_say_that_nothing_is_sent_and_a_dense_field_may_not():
    bound = Bound(0, ASKED | {"gates": frozenset({Entry("g", "u1", (3,))})})
    empty = small()._replace(weights={}, mask={})
    assert Decoder().decode(encode(empty).data, Up, bound=bound).weights == {}
    with pytest.raises(WireError, match="gates: other tensors than were asked for, g"):
        Decoder().decode(encode(empty._replace(gates={})).data, Up, bound=bound)


def test_a_frame_longer_than_any_message_asked_for_is_not_looked_at():
    bound = Bound(1000, schema_bytes=100)
    most = 1000 + 0 + 100 + 2**16
    with pytest.raises(WireError, match="expected magic"):
        Decoder().decode(bytes(most), Up, bound=bound)
    with pytest.raises(WireError, match=f"frame of {most + 1} bytes, this receiver takes {most}"):
        Decoder().decode(bytes(most + 1), Up, bound=bound)


def test_a_long_schema_is_refused_before_it_is_read():
    schema = _schema(*[[f"{i:05d}", "f4", []] for i in range(3000)])
    with pytest.raises(WireError, match=r"schema of 33\d+ bytes, this receiver takes 4096"):
        Decoder().decode(forged(schema), Up, bound=Bound(10**6, schema_bytes=4096))


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("tag", [LAYERS, ROWS])
def test_masks_of_short_rows_take_no_more_than_twice_themselves(columns, tag):
    """LAYERS with rows in two bins, ROWS: places and bins of rows are not held all at once."""
    rows = 600_000
    bins = np.arange(rows) % 2 == 0
    odds = np.random.default_rng(0).random((rows, columns))
    density = np.where(bins, 0.02, 0.7) if tag == LAYERS else bins
    kept = odds < density[:, None]
    layout = ((rows, columns),)
    data = encode_mask(kept.reshape(-1), layout)
    if data[0] != tag:
        assert columns == 1
        data = bytes([ROWS]) + encode_mask(kept[:, 0], ((1, rows),))
    tracemalloc.start()
    try:
        found = decode_mask(memoryview(data), layout)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, kept.reshape(-1))
    assert peak < 2 * kept.size + 1_000_000


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_decoding_takes_at_most_twice_the_dense_size(density, precision):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(50, 20, 20, 20, generator=generator)
    mask = torch.rand(weights.shape, generator=generator) < density
    message = small()._replace(weights={"w": weights}, mask={"w": mask})
    data = encode(message, coding=Coding(NAMED[precision])).data
    Decoder().decode(data, Up)
    tracemalloc.start()
    try:
        Decoder().decode(data, Up)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    dense = 4 * weights.numel() + mask.numel()
    assert dense <= peak < 2 * dense  # a peak below the tensors would mean nothing was measured
