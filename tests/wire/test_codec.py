"""Messages to bytes and back: nothing is lost, every byte is accounted for."""

import math
import struct
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.core import tree
from fedsieve.core.errors import WireError
from fedsieve.core.message import Bits, Dense, Kept, Params
from fedsieve.wire.codec import Decoder, encode
from fedsieve.wire.schema import DTYPES, schema_of
from wire.messages import GOLDEN_SCHEMA, MASK, VALUES, Nothing, Up, forged, small

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
names = st.text(max_size=6)


@st.composite
def tensors(draw, shape=None, dtype=None):
    """Tensors of random bits: NaNs of all kinds, infinities, denormals and -0.0 among them."""
    shape = draw(shapes) if shape is None else shape
    dtype = dtype or draw(st.sampled_from(list(DTYPES)))
    size = math.prod(shape) * np.dtype(dtype).itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    bits = bits & 1 if dtype == "b1" else bits.copy()
    return torch.from_numpy(bits.view(dtype).reshape(shape))


@st.composite
def messages(draw):
    weights = draw(st.dictionaries(names, tensors(), max_size=4))
    masked = [name for name in weights if draw(st.booleans())]
    mask = {name: draw(tensors(tuple(weights[name].shape), "b1")) for name in masked}
    extra = draw(st.dictionaries(names.filter(lambda n: n not in weights), tensors(dtype="b1")))
    return Up(
        weights=weights,
        dual=draw(st.floats()),
        mask=mask | extra,
        gates=draw(st.dictionaries(names, tensors(), max_size=3)),
        examples=draw(st.integers(0, 2**63 - 1)),
    )


def _received(message):
    """What must arrive: values outside the mask are 0."""
    weights = message.weights | {
        n: torch.where(mask, message.weights[n], torch.zeros_like(message.weights[n]))
        for n, mask in message.mask.items()
        if n in message.weights
    }
    return message._replace(weights=weights)


@settings(max_examples=150)
@given(messages())
def test_what_is_decoded_is_what_was_encoded_bit_for_bit(message):
    payload = encode(message)
    back = Decoder().decode(payload.data, Up)
    assert tree.equal(back, _received(message))
    assert [list(field) for field in (back.weights, back.mask, back.gates)] == [
        list(field) for field in (message.weights, message.mask, message.gates)
    ]
    assert encode(back) == encode(_received(message)) == payload


@settings(max_examples=60)
@given(messages())
def test_the_parts_of_a_payload_are_the_bits_and_values_sent_and_the_rest(message):
    payload = encode(message)
    assert payload.header_bytes + payload.mask_bytes + payload.value_bytes == len(payload.data)
    assert payload.mask_bytes == math.ceil(sum(m.numel() for m in message.mask.values()) / 8)
    values = [
        t.element_size() * (int(message.mask[n].sum()) if n in message.mask else t.numel())
        for n, t in message.weights.items()
    ] + [t.element_size() * t.numel() for t in message.gates.values()]
    assert payload.value_bytes == sum(values)


@pytest.mark.parametrize("density", [0, 0.01, 0.5, 0.99, 1])
def test_every_density_survives(density):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 3, 5, 5, generator=generator).to(memory_format=torch.channels_last)
    mask = torch.rand(weight.shape, generator=generator) < density
    message = small()._replace(weights={"w": weight}, mask={"w": mask})
    payload = encode(message)
    assert payload.value_bytes == 4 * int(mask.sum()) + 3
    assert tree.equal(Decoder().decode(payload.data, Up), _received(message))


def test_a_message_without_fields_takes_no_bytes():
    assert encode(Nothing()) == (b"", 0, 0, 0)
    assert Decoder().decode(b"", Nothing) == Nothing()
    with pytest.raises(WireError, match="no fields, found 1 bytes"):
        Decoder().decode(b"x", Nothing)


def test_the_frame_is_the_documented_one():
    packed = msgspec.msgpack.encode(GOLDEN_SCHEMA)
    name = xxhash.xxh3_64_intdigest(packed)
    # msgpack by hand: array of 5, u64, two small numbers, [0.5 as f64, 300 as u16], binary.
    header = b"\x95\xcf" + struct.pack(">Q", name) + bytes([len(MASK), len(VALUES)])
    header += b"\x92\xcb" + struct.pack(">d", 0.5) + b"\xcd" + struct.pack(">H", 300)
    header += b"\xc4" + bytes([len(packed)]) + packed
    body = b"FSV1" + struct.pack("<HHI", 1, 0, len(header)) + header + MASK + VALUES
    frame = body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    assert encode(small()).data == frame == forged()
    assert tree.equal(Decoder().decode(frame, Up), small())


def test_a_known_schema_is_named_by_its_hash_alone():
    schema, mark = schema_of(small())
    assert schema.packed() == msgspec.msgpack.encode(GOLDEN_SCHEMA)
    full, short = encode(small()), encode(small(), known={mark})
    assert len(full.data) - len(short.data) == len(schema.packed())
    told, learned, ignorant = Decoder(), Decoder(), Decoder()
    told.decode(full.data, Up)
    assert learned.learn(schema.packed()) == mark
    for decoder in (told, learned):
        assert tree.equal(decoder.decode(short.data, Up), small())
    with pytest.raises(WireError, match=f"schema {mark:016x} was never announced"):
        ignorant.decode(short.data, Up)


def test_equal_layouts_share_a_schema_and_others_do_not():
    message = small()
    same = message._replace(examples=1, gates={"g": torch.zeros(3, dtype=torch.uint8)})
    others = [
        message._replace(gates={"h": message.gates["g"]}),
        message._replace(gates={"g": message.gates["g"].float()}),
        message._replace(gates={"g": message.gates["g"].view(3, 1)}),
        message._replace(gates={}),
    ]
    assert schema_of(same) == schema_of(message)
    assert len({schema_of(m)[1] for m in (message, *others)}) == 5


def test_a_frame_of_another_class_is_refused():
    class Other(NamedTuple):
        weights: Dense

    with pytest.raises(WireError, match=r"expected a .*Other message"):
        Decoder().decode(encode(small()).data, Other)


def test_decoded_tensors_are_their_own_memory_and_may_be_changed():
    payload = encode(small())
    message = Decoder().decode(bytearray(payload.data), Up)
    for field in (message.weights, message.mask, message.gates):
        for tensor in field.values():
            tensor.zero_()
    assert tree.equal(Decoder().decode(memoryview(payload.data), Up), small())


def test_encoding_takes_what_training_leaves():
    # Gradients, transposed views and channels-last kernels: none of them reaches the bytes.
    kernel, fc = torch.randn(2, 3, 3, 3), torch.randn(3, 2)
    one = small()._replace(gates={"k": kernel, "fc": fc})
    two = one._replace(
        gates={
            "k": kernel.to(memory_format=torch.channels_last).requires_grad_(),
            "fc": fc.T.contiguous().T,
        }
    )
    assert encode(one) == encode(two)


@pytest.mark.parametrize("count", [-1, 2**63, 2.5])
def test_a_count_that_is_none_is_refused_before_it_is_sent(count):
    with pytest.raises(WireError, match="a Count is a whole number"):
        encode(small()._replace(examples=count))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gates": {"g": torch.zeros(2, dtype=torch.complex64)}}, "gates/g: type torch.complex64"),
        ({"gates": {"g": torch.zeros([1] * 9)}}, "gates/g has an impossible shape"),
        ({"mask": {"w": torch.ones(2, 2)}}, "mask/w is a mask of type 'f4'"),
        ({"mask": {"w": torch.ones(2, 2, dtype=torch.uint8)}}, "mask/w is a mask of type 'u1'"),
        ({"mask": {"w": torch.ones(2).bool()}}, r"weights/w: mask of \(2,\) for \(2, 2\)"),
    ],
)
def test_what_a_receiver_would_refuse_is_not_sent(change, message):
    with pytest.raises(WireError, match=message):
        encode(small()._replace(**change))


def test_several_fields_may_share_a_mask_or_have_their_own():
    class Two(NamedTuple):
        a: Bits
        b: Bits
        x: Annotated[Params, Kept("a")]
        y: Annotated[Params, Kept("b")]
        z: Annotated[Params, Kept("b")]

    some = torch.tensor([True, False, True, False, False])
    values = torch.arange(1.0, 6.0)
    message = Two({"w": some}, {"w": ~some}, {"w": values}, {"w": values * 2}, {"w": values * 3})
    payload = encode(message)
    back = Decoder().decode(payload.data, Two)
    assert (payload.mask_bytes, payload.value_bytes) == (2, 4 * (2 + 3 + 3))
    assert back.x["w"].tolist() == [1, 0, 3, 0, 0]
    assert back.y["w"].tolist() == [0, 4, 0, 8, 10]
    assert back.z["w"].tolist() == [0, 6, 0, 12, 15]
