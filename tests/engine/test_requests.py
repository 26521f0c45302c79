"""Requests and responses: the same after encoding and decoding, and nothing else is read."""

from typing import NamedTuple

import msgspec
import pytest
import torch

from fedsieve.core.errors import WireError
from fedsieve.core.keys import fold
from fedsieve.core.message import Params
from fedsieve.engine import blob
from fedsieve.engine.mask_cache import Packed
from fedsieve.engine.request_encoding import REQUESTS, RESPONSES, Encoded, Kinds, encode, parts
from fedsieve.engine.requests import (
    Evaluate,
    EvaluateOwn,
    Failure,
    Observe,
    Observed,
    Refusal,
    Reply,
    Request,
    Share,
    Tallies,
    Train,
    check_answer,
    for_node,
)
from fedsieve.engine.store import Receipt
from fedsieve.metrics.macs import Macs
from fedsieve.wire.frame import Payload


class State(NamedTuple):
    weights: Params
    rounds: int


MODEL = {"w": torch.arange(6.0).reshape(2, 3)}
STATE, RECEIPT = State(MODEL, 3), Receipt(3, torch.arange(16, dtype=torch.uint8))
PAYLOAD = Payload(b"123456", 1, 2, 3)
TRAIN = Train(
    4, b"down", b"schema", frozenset({5, 2**63}), {7: Packed(b"\xff", 8), 9: None}, STATE, MODEL,
    fold(1), 2,
)  # fmt: skip
REPLY = Reply(4, PAYLOAD, 10, STATE, {}, {"loss": 0.5}, Macs(3, 2, 1), 0.25)
TALLIES = Tallies((4,), torch.ones(1, 3, dtype=torch.float64), 4, {"w": Share(0.5, 6)})
MESSAGES = [
    TRAIN,
    TRAIN._replace(state=(), residual={}, masks={}),
    Observe(4, b"down", b"", {7: None}, STATE, 2),
    Evaluate(MODEL, (1, 2)),
    EvaluateOwn(4, STATE, (), ()),
    REPLY,
    REPLY._replace(state=RECEIPT),
    Observed(4, STATE),
    Refusal(4, "why"),
    Failure(4, "why", "where"),
    TALLIES,
    Tallies((), torch.empty(0, dtype=torch.float64)),
]  # fmt: skip


def kinds_of(message):
    return Kinds(type(getattr(message, "state", ())), State)


def plain(value):
    """Trees as lists, which can be compared."""
    if isinstance(value, torch.Tensor):
        return [value.dtype, value.tolist()]
    if isinstance(value, tuple):
        return [type(value).__name__, *map(plain, value)]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_is_the_same_after_encoding(message):
    decoder = REQUESTS if isinstance(message, Request) else RESPONSES
    decoded = decoder.decode(encode(message), kinds_of(message))
    assert type(decoded) is type(message)
    assert plain(decoded) == plain(message)


def test_what_the_receiver_holds_is_sent_once_and_packed_once():
    packed, sender, receiver = {}, {}, {}
    sizes = []
    for number in range(3):
        request = Evaluate(MODEL if number < 2 else dict(MODEL), (number,))
        header, *blobs = parts(request, packed, sender)
        sizes.append(len(blobs))
        decoded = REQUESTS.read(header, iter(blobs), Kinds(tuple), receiver)
        assert decoded.shards == (number,)
        assert decoded.model["w"].equal(MODEL["w"])
    assert sizes == [1, 0, 1]
    first, second = (encode(Evaluate(request.model, (n,)), packed).blobs[0] for n in range(2))
    assert first is second


def test_what_was_never_sent_is_an_error():
    header, *_ = parts(Evaluate(MODEL, (1,)), None, {"model": MODEL})
    with pytest.raises(WireError, match=r"Evaluate\.model: it was not sent"):
        REQUESTS.read(header, iter(()), Kinds(tuple))


def test_a_client_that_keeps_masks_itself_gets_their_names():
    request = for_node(TRAIN)
    assert (request.schema, request.masks) == (b"", {7: None, 9: None})
    assert len(encode(request).header) < len(encode(TRAIN).header)


def forged(message, place, value):
    encoded = encode(message)
    fields = msgspec.msgpack.decode(encoded.header)
    fields[1 + message._fields.index(place)] = value
    return msgspec.structs.replace(encoded, header=msgspec.msgpack.encode(fields))


REMOTE = REPLY._replace(state=RECEIPT)
WRONG = {
    "text for a number": (forged(REMOTE, "client", "4"), r"Reply\.client"),
    "a negative count": (forged(REMOTE, "paper_bytes", -1), r"Reply\.paper_bytes"),
    "a count no row can hold": (forged(REMOTE, "paper_bytes", 2**56), r"Reply\.paper_bytes"),
    "work no row can hold": (forged(REMOTE, "macs", [2**60, 0, 0]), r"Reply\.macs"),
    "too many values": (forged(REMOTE, "values", {str(i): 0.0 for i in range(2000)}),
                        r"Reply\.values"),
    "sizes that do not add up": (forged(REMOTE, "up", [1, 1, 1]), r"Reply\.up: 6 bytes"),
    "a short hash": (forged(REMOTE, "state", [1, b"x"]), r"Reply\.state"),
    "a state for a receipt": (encode(REPLY), r"Reply\.state: expected a receipt"),
    "a residual": (encode(REMOTE._replace(residual=MODEL)), r"Reply\.residual: it stays"),
    "a density of 2": (forged(TALLIES, "shares", {"w": [2.0, 6]}), r"Tallies\.shares"),
    "a density that is none": (forged(TALLIES, "shares", {"w": [float("nan"), 6]}),
                               r"Tallies\.shares"),
    "a size of 0": (forged(TALLIES, "shares", {"w": [0.5, 0]}), r"Tallies\.shares"),
    "more shards than rows": (forged(TALLIES, "shards", [1, 2]), r"Tallies\.tallies"),
    "a number for rows": (
        msgspec.structs.replace(encode(TALLIES), blobs=(
            blob.pack({"tensor": torch.tensor(1.0, dtype=torch.float64)}),)), r"Tallies\.tallies"),
    "bytes that are no tensors": (
        msgspec.structs.replace(encode(TALLIES), blobs=(b"junk",)), r"Tallies\.tallies"),
    "no blob": (msgspec.structs.replace(encode(TALLIES), blobs=()), "blob is missing"),
    "a blob too many": (msgspec.structs.replace(encode(TALLIES), blobs=(
        *encode(TALLIES).blobs, b"")), "more blobs"),
    "another kind": (Encoded(msgspec.msgpack.encode(["Shutdown", 1]), ()), "Shutdown"),
    "a request": (encode(TRAIN), "Train"),
    "a list for a kind": (Encoded(msgspec.msgpack.encode([[1], 1, "a"]), ()), "expected"),
    "too many fields": (Encoded(msgspec.msgpack.encode(["Refusal", 1, "a", "b"]), ()), "length"),
    "junk": (Encoded(b"\xc1", ()), "not what was expected"),
    "bad text": (Encoded(b"\x93\xa7Refusal\x01\xa1\xff", ()), "not what was expected"),
    "nothing": (Encoded(b"", ()), "not what was expected"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_an_untrusted_message_is_refused_with_the_field_that_is_wrong(case):
    encoded, words = WRONG[case]
    with pytest.raises(WireError, match=words):
        RESPONSES.decode(encoded, Kinds(Receipt))


ASKED = TRAIN._replace(state=RECEIPT)
OWN = EvaluateOwn(4, (), RECEIPT, (4,))


@pytest.mark.parametrize(
    ("request_", "response", "words"),
    [
        (ASKED, TALLIES, "Tallies is no answer to Train"),
        (ASKED, REMOTE._replace(client=3), "speaks for client 3, 4 was asked"),
        (ASKED, REMOTE, "of round 3, not of 2"),
        (ASKED, Failure(5, "why"), "speaks for client 5"),
        (OWN, TALLIES._replace(shards=(5,)), "1 shards, 1 were asked for"),
        (OWN, TALLIES._replace(client=-1), "client -1"),
        (Evaluate(MODEL, (4,)), TALLIES, "client 4, -1"),
    ],
)
def test_an_answer_must_fit_its_request(request_, response, words):
    with pytest.raises(WireError, match=words):
        check_answer(request_, response, 2)


def test_answers_that_fit_pass():
    check_answer(ASKED, REMOTE, 3)
    check_answer(OWN, TALLIES, 3)
    check_answer(OWN, TALLIES._replace(shards=()), 3)
    check_answer(Evaluate(MODEL, (4,)), Failure(4, "why"), 3)
