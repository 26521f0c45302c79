"""Bits of a reply are coded by how likely the broadcast said they are."""

import math
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.core import keys
from fedsieve.core.errors import WireError
from fedsieve.core.keys import fold
from fedsieve.core.message import Bit, Dense, Mask
from fedsieve.wire.codec import Decoder, Known, UnheldError, encode, masks_of
from fedsieve.wire.contexts import BINS, contexts_of, decode_likely, encode_likely
from fedsieve.wire.frame import open_frame
from fedsieve.wire.inspect import inspect, read_frame
from small import SETTINGS


class Asked(NamedTuple):
    odds: Dense


class Voted(NamedTuple):
    votes: Annotated[Mask, Bit(given="odds")]


def drawn(*shapes, top=1.0):
    """Probabilities, and bits drawn with them."""
    odds = {f"w{i}": top * keys.uniform(fold(0, i), shape) for i, shape in enumerate(shapes)}
    votes = {n: keys.uniform(fold(1, n), p.shape) < p for n, p in odds.items()}
    return Asked(odds), Voted(votes)


def sent(asked, voted):
    return encode(voted, Known(contexts=contexts_of(Voted, asked)))


def test_bits_arrive_as_they_were():
    asked, voted = drawn((30, 40), (7,), (0, 3), (4, 5, 3, 3))
    payload = sent(asked, voted)
    found = Decoder().decode(payload.data, Voted, contexts=contexts_of(Voted, asked))
    assert all(torch.equal(found.votes[n], bits) for n, bits in voted.votes.items())


def test_they_cost_the_entropy_of_their_probabilities():
    """Uniform probabilities have a mean entropy of 1 / (2 ln 2) = 0.7213 bits; half are set."""
    asked, voted = drawn((300, 1000))
    bits = 8 * sent(asked, voted).mask_bytes / 300_000
    assert bits == pytest.approx(1 / (2 * math.log(2)), rel=0.005)
    assert 8 * encode(voted).mask_bytes / 300_000 > 0.999


def test_bits_far_from_their_probabilities_cost_what_they_would_alone():
    asked, _ = drawn((300, 100))
    other = Voted({"w0": keys.uniform(fold(2), (300, 100)) < 0.1})
    assert sent(asked, other).mask_bytes <= encode(other).mask_bytes
    same = Voted({"w0": torch.zeros(300, 100, dtype=torch.bool)})
    assert sent(asked, same).mask_bytes == 1


def test_the_shortest_way_is_taken():
    asked, voted = drawn((300, 100))
    known = Known(masks=masks_of(voted), contexts=contexts_of(Voted, asked))
    (block,) = open_frame(encode(voted, known).data).masks
    assert (block.base is not None, len(block.data)) == (True, 0)  # it is held: its name is enough


@pytest.mark.parametrize(
    "other",
    [{}, {"votes": {}}, {"votes": {"w0": np.zeros(9, np.uint8)}}, {"bits": {}}],
)
def test_a_receiver_that_does_not_know_them_refuses(other):
    asked, voted = drawn((300, 10))
    with pytest.raises(UnheldError, match="votes: how likely its bits are is not known here"):
        Decoder().decode(sent(asked, voted).data, Voted, contexts=other)


def test_the_broadcast_must_have_the_field():
    with pytest.raises(TypeError, match=r"Voted\.votes is Bit\(given='odds'\), but Voted has no"):
        contexts_of(Voted, drawn((3,))[1])


def test_bins_are_even_in_angle_and_take_any_float():
    edges = [math.sin(math.pi * k / 64) ** 2 for k in range(33)]
    middles = torch.tensor([(a + b) / 2 for a, b in pairwise(edges)])
    assert contexts_of(Voted, Asked({"p": middles}))["votes"]["p"].tolist() == list(range(BINS))
    odd = torch.tensor([-1.0, 0.0, 1.0, 2.0, math.inf, -math.inf, math.nan])
    found = contexts_of(Voted, Asked({"p": odd}))["votes"]["p"].tolist()
    assert found == [0, 0, 31, 31, 31, 0, 31]


def test_bytes_are_those_of_the_documented_layout():
    """Coder 6, a density for each bin that has bits, an ANS stream; certain bits need none."""
    bins = np.tile(np.array([0, 31, 9], np.uint8), 8)
    kept = bins == 31
    assert encode_likely(kept, [bins]).hex() == "06" + "00" + "00" + "80"
    mixed = kept.copy()
    mixed[[2, 5, 8, 11]] = True  # half of bin 9: level 127
    coded = encode_likely(mixed, [bins])
    assert coded[:4].hex() == "06" + "00" + "7f" + "80"
    assert coded[4:].hex() == "0000f0"  # 11110000 of even odds: the highest 8 of 24 bits
    assert (decode_likely(memoryview(coded), [bins[:10], bins[10:]]) == mixed).all()


@pytest.mark.parametrize(
    "wrong", ["", "06", "0600", "060000", "05000080", "06007f80f000", "06000080f0"]
)
def test_other_bytes_are_refused(wrong):
    bins = np.tile(np.array([0, 31, 9], np.uint8), 8)
    with pytest.raises(WireError, match="mask"):
        decode_likely(memoryview(bytes.fromhex(wrong)), [bins])


@pytest.mark.parametrize("wire", ["fp32", "int8"])
def test_a_run_codes_by_what_clients_read_and_its_messages_can_be_inspected(wire, tmp_path):
    settings = SETTINGS | {"method": "fedpm", "wire": wire, "rounds": 2}
    fedsieve.run(**settings, save_messages=(2,), out=tmp_path / "run")
    frames = [read_frame(path) for path in sorted((tmp_path / "run/messages").glob("*-up.frame"))]
    assert frames
    for frame in frames:
        block, empty = open_frame(frame.data).masks
        assert block.data[0] == 6
        assert inspect(frame).mask_bytes == len(block.data) + len(empty.data)
