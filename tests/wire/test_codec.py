"""Messages to bytes and back: nothing is lost, every byte is accounted for."""

import math
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.core import tree
from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key
from fedsieve.core.message import Bits, Dense, Exact, Kept, Params, paper_bytes
from fedsieve.wire import schema as schemas
from fedsieve.wire.codec import Coding, Decoder, Known, UnheldError, encode, masks_of
from fedsieve.wire.compressors import NAMED
from fedsieve.wire.frame import open_frame
from fedsieve.wire.inspect import message_limit
from fedsieve.wire.precision import PRECISIONS
from fedsieve.wire.schema import DTYPES, MAX_SCHEMAS, schema_of
from wire.messages import GOLDEN_SCHEMA, Nothing, Up, small

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


def received(message):
    """What must arrive: values outside the mask are 0."""
    weights = message.weights | {
        n: torch.where(mask, message.weights[n], torch.zeros_like(message.weights[n]))
        for n, mask in message.mask.items()
        if n in message.weights
    }
    return message._replace(weights=weights)


def masked(density, seed=0, shape=(40, 3, 5, 5)):
    """A message of `shape` with so many values kept."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator)
    mask = torch.rand(shape, generator=generator) < density
    return small()._replace(weights={"w": weight}, mask={"w": mask})


def bases(payload):
    """Names of the held masks that a frame refers to."""
    return [mask.base for mask in open_frame(payload.data).masks]


def flipped(message, count, seed=0):
    """The message with `count` positions of its mask changed."""
    places = torch.randperm(
        message.mask["w"].numel(), generator=torch.Generator().manual_seed(seed)
    )
    mask = message.mask["w"].clone()
    mask.view(-1)[places[:count]] ^= True
    return message._replace(mask={"w": mask})


@settings(max_examples=150, deadline=None)
@given(messages())
def test_what_is_decoded_is_what_was_encoded_bit_for_bit(message):
    payload = encode(message)
    back = Decoder().decode(payload.data, Up)
    assert tree.equal(back, received(message))
    assert [list(field) for field in (back.weights, back.mask, back.gates)] == [
        list(field) for field in (message.weights, message.mask, message.gates)
    ]
    assert encode(back) == encode(received(message)) == payload


@settings(max_examples=60, deadline=None)
@given(messages(), st.sampled_from(PRECISIONS))
def test_a_precision_rounds_float32_values_and_nothing_else(message, precision):
    coding = Coding(NAMED[precision], Key(3))
    payload = encode(message, coding=coding)
    assert payload == encode(message, coding=coding)
    back, exact = Decoder().decode(payload.data, Up), received(message)
    for field, values in (("weights", exact.weights), ("gates", exact.gates)):
        found = getattr(back, field)
        assert [(n, t.dtype, t.shape) for n, t in found.items()] == [
            (n, t.dtype, t.shape) for n, t in values.items()
        ]
        others = {n: t for n, t in values.items() if t.dtype != torch.float32}
        assert tree.equal({n: found[n] for n in others}, others)
        for name in values.keys() - others:
            lost = ~found[name].isfinite() | ~values[name].isfinite()
            assert precision != "fp32" or torch.equal(found[name][~lost], values[name][~lost])
    assert tree.equal(back._replace(weights={}, gates={}), exact._replace(weights={}, gates={}))


@settings(max_examples=60, deadline=None)
@given(messages())
def test_parts_add_up_and_cost_at_most_one_byte_more_than_plain_bits_and_values(message):
    payload = encode(message)
    assert payload.header_bytes + payload.mask_bytes + payload.value_bytes == len(payload.data)
    assert (
        1 <= payload.mask_bytes <= 1 + math.ceil(sum(m.numel() for m in message.mask.values()) / 8)
    )
    values = [
        t.element_size() * (int(message.mask[n].sum()) if n in message.mask else t.numel())
        for n, t in message.weights.items()
    ] + [t.element_size() * t.numel() for t in message.gates.values()]
    assert payload.value_bytes <= 2 + sum(values)  # a tag for the floats of each field


@pytest.mark.parametrize("density", [0, 0.01, 0.5, 0.99, 1])
def test_every_density_survives(density):
    message = masked(density)
    weight = message.weights["w"].to(memory_format=torch.channels_last)
    message = message._replace(weights={"w": weight})
    kept = int(message.mask["w"].sum())
    payload = encode(message)
    assert payload.value_bytes <= 4 * kept + 1 + 3
    assert payload.mask_bytes <= 1 + math.ceil(weight.numel() / 8)
    assert tree.equal(Decoder().decode(payload.data, Up), received(message))


def test_a_message_without_fields_takes_no_bytes():
    assert encode(Nothing()) == (b"", 0, 0, 0)
    assert Decoder().decode(b"", Nothing) == Nothing()
    assert masks_of(Nothing()) == {}
    with pytest.raises(WireError, match="no fields, found 1 bytes"):
        Decoder().decode(b"x", Nothing)


def test_a_known_schema_is_named_by_its_hash_alone():
    schema, mark = schema_of(small())
    assert schema.packed() == msgspec.msgpack.encode(GOLDEN_SCHEMA)
    full, short = encode(small()), encode(small(), Known(frozenset({mark})))
    assert len(full.data) - len(short.data) == len(schema.packed())
    told, learned, ignorant = Decoder(), Decoder(), Decoder()
    told.decode(full.data, Up)
    assert learned.learn(schema.packed()) == mark
    for decoder in (told, learned):
        assert tree.equal(decoder.decode(short.data, Up), small())
    with pytest.raises(UnheldError, match=f"schema {mark:016x} was never announced"):
        ignorant.decode(short.data, Up)


@settings(max_examples=60, deadline=None)
@given(messages(), messages(), st.sampled_from([1, 2, 9]))
def test_a_frame_coded_against_held_masks_decodes_to_the_same_message(message, other, every):
    bits = {n: m ^ (torch.arange(m.numel()) % every == 0).view(m.shape) for n, m in
            message.mask.items()}  # fmt: skip
    held = masks_of(message._replace(mask=bits)) | masks_of(other)
    payload = encode(message, Known(masks=held))
    assert tree.equal(Decoder().decode(payload.data, Up, held), received(message))


def test_a_frame_coded_against_a_held_mask_is_short_and_needs_it():
    before = masked(0.3)
    after = flipped(before, 20)
    held = masks_of(before)
    whole, change = encode(after), encode(after, Known(masks=held))
    assert change.mask_bytes < whole.mask_bytes / 5
    assert tree.equal(Decoder().decode(change.data, Up, held), received(after))
    (mark,) = held
    for recall in (None, {}, masks_of(after), {mark: held[mark][1:]}):
        with pytest.raises(UnheldError, match=f"mask: mask {mark:014x} is not held here"):
            Decoder().decode(change.data, Up, recall)


@pytest.mark.parametrize("flips", [1, 20, 300, 2999])
@pytest.mark.parametrize("density", [0.02, 0.3, 0.9])
def test_another_mask_under_the_hash_gives_a_message_of_the_right_shape_or_an_error(density, flips):
    before = masked(density)
    change = encode(flipped(before, flips), Known(masks=masks_of(before)))
    (mark,) = masks_of(before)
    refused = 0
    for seed in range(10):
        (other,) = masks_of(masked([0.0, 0.1, density, 1.0][seed % 4], seed + 1)).values()
        try:
            found = Decoder().decode(change.data, Up, {mark: other})
        except WireError as error:
            refused += not isinstance(error, UnheldError)
        else:
            assert schema_of(found) == schema_of(before)
    assert refused  # another number of values is kept than was sent


def test_an_unchanged_mask_costs_eight_bytes():
    class Pair(NamedTuple):
        first: Bits
        second: Bits

    class One(NamedTuple):
        first: Bits

    rng = np.random.default_rng(0)
    first, second = ({"w": torch.from_numpy(rng.random((1000, 500)) < 0.3)} for _ in range(2))
    pair, one = Pair(first, second), One(first)
    held = masks_of(pair)
    known = Known(frozenset({schema_of(pair)[1], schema_of(one)[1]}), held)
    two, single = encode(pair, known), encode(one, known)
    assert len(two.data) - len(single.data) == 8
    assert two.mask_bytes == 0  # a name and a length, both counted as header
    decoder = Decoder()
    decoder.learn(schema_of(pair)[0].packed())
    assert tree.equal(decoder.decode(two.data, Pair, held), pair)


def test_the_nearest_of_several_held_masks_is_chosen():
    message = masked(0.3)
    far, near, other = flipped(message, 50), flipped(message, 5), masked(0.9, 1, (10, 10))
    held = masks_of(far) | masks_of(near) | masks_of(other)
    payload = encode(message, Known(masks=held))
    assert bases(payload) == list(masks_of(near))
    assert payload.mask_bytes < encode(message, Known(masks=masks_of(far))).mask_bytes
    assert bases(encode(message, Known(masks=masks_of(other)))) == [None]
    assert tree.equal(Decoder().decode(payload.data, Up, held), received(message))


def test_a_mask_is_named_by_its_bits_and_shapes():
    mask = torch.tensor([True, False, True, False])
    variants = [
        {"a": mask},
        {"a": ~mask},
        {"a": mask.view(2, 2)},
        {"a": mask[:2], "b": mask[2:]},
        {"a": mask.view(4, 1), "b": torch.zeros(0, 3, dtype=torch.bool)},
    ]
    marks = [next(iter(masks_of(small()._replace(weights={}, mask=m)))) for m in variants]
    assert len(set(marks)) == len(variants)
    assert list(masks_of(small()._replace(weights={}, mask={"b": mask}))) == marks[:1]  # no names
    assert all(0 <= mark < 2**56 for mark in marks)


def test_what_an_end_holds_is_its_own_memory():
    message = small()
    held = masks_of(message)
    before = {mark: flat.copy() for mark, flat in held.items()}
    message.mask["w"].zero_()
    back = Decoder().decode(encode(small(), Known(masks=held)).data, Up, held)
    back.mask["w"].zero_()
    assert all(np.array_equal(held[mark], before[mark]) for mark in before)


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

    class Rounded(NamedTuple):
        weights: Exact

    with pytest.raises(WireError, match=r"expected a .*Other message"):
        Decoder().decode(encode(small()).data, Other)
    with pytest.raises(WireError, match=r"expected a .*Rounded message .*exact.* found .*dense"):
        Decoder().decode(encode(Other({})).data, Rounded)


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


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 5, 1), (1, 5, 4), (6, 5, 4)])
def test_one_bit_may_stand_for_all_along_an_axis(shape):
    class Grouped(NamedTuple):
        mask: Bits
        weights: Annotated[Params, Kept("mask")]
        thresholds: Annotated[Params, Kept("mask")]

    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(shape, generator=generator) < 0.5
    weights, thresholds = torch.randn(6, 5, 4, generator=generator), torch.rand(shape) + 1
    message = Grouped({"w": kept}, {"w": weights}, {"w": thresholds})
    found = Decoder().decode(encode(message).data, Grouped)
    assert torch.equal(found.mask["w"], kept)
    assert torch.equal(found.weights["w"], torch.where(kept, weights, 0))
    assert torch.equal(found.thresholds["w"], torch.where(kept, thresholds, 0))
    sent = int(kept.sum()) * (weights.numel() // kept.numel()) + int(kept.sum())
    assert paper_bytes(message) == 4 * sent
    assert message_limit(message) > 0


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
    assert payload.mask_bytes == 2 + 2  # a tag and five bits each
    assert payload.value_bytes == (1 + 4 * 2) + (1 + 4 * 3) + (1 + 4 * 3)
    assert back.x["w"].tolist() == [1, 0, 3, 0, 0]
    assert back.y["w"].tolist() == [0, 4, 0, 8, 10]
    assert back.z["w"].tolist() == [0, 6, 0, 12, 15]
    held = masks_of(message)
    again = encode(message, Known(masks=held))
    assert bases(again) == list(held)  # each its own
    assert again.mask_bytes == 0
    assert tree.equal(Decoder().decode(again.data, Two, held), back)


def test_an_end_remembers_the_schemas_used_last():
    def sized(number):
        return small()._replace(gates={"g": torch.zeros(number)})

    decoder, first = Decoder(), sized(0)
    mark = schema_of(first)[1]
    for number in range(MAX_SCHEMAS + 40):
        decoder.decode(encode(sized(number)).data, Up)
        decoder.decode(encode(first, Known(frozenset({mark}))).data, Up)
        assert len(decoder.schemas) <= MAX_SCHEMAS
        assert len(schemas._known) <= MAX_SCHEMAS
    assert list(decoder.schemas)[-2:] == [schema_of(sized(MAX_SCHEMAS + 39))[1], mark]
    forgotten = sized(1)
    with pytest.raises(UnheldError, match="was never announced"):
        decoder.decode(encode(forgotten, Known(frozenset({schema_of(forgotten)[1]}))).data, Up)
    assert tree.equal(decoder.decode(encode(forgotten).data, Up), forgotten)  # told again
