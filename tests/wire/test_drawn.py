"""Probabilities arrive as bits drawn with them, and cost about twice their divergence."""

import math
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.core import keys
from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bit, Dense, Drawn, Mask, Params
from fedsieve.wire.codec import Coding, Decoder, Known, UnheldError, encode, masks_of
from fedsieve.wire.contexts import contexts_of
from fedsieve.wire.drawn import decode_drawn
from fedsieve.wire.frame import open_frame
from fedsieve.wire.inspect import inspect, read_frame
from fedsieve.wire.schema import schema_of
from small import SETTINGS

FIRST = Key(0)


class Asked(NamedTuple):
    theta: Dense


class Voted(NamedTuple):
    votes: Annotated[Params, Drawn(given="theta")]


class Coded(NamedTuple):
    votes: Annotated[Mask, Bit(given="theta")]


def pair(*shapes, moved=0.5):
    """Probabilities of a broadcast, and a client's, whose logits lie `moved` beside them."""
    theta = {f"w{i}": keys.uniform(fold(0, i), s) * 0.98 + 0.01 for i, s in enumerate(shapes)}
    signs = {n: 2.0 * (keys.uniform(fold(1, n), p.shape) < 0.5) - 1 for n, p in theta.items()}
    own = {n: torch.sigmoid(torch.logit(p) + moved * signs[n]) for n, p in theta.items()}
    return Asked(theta), Voted(own)


def sent(asked, voted, key=FIRST):
    return encode(voted, Known(contexts=contexts_of(Voted, asked)), Coding(key=key))


def arrived(asked, voted, key=FIRST):
    data = sent(asked, voted, key).data
    return Decoder().decode(data, Voted, contexts=contexts_of(Voted, asked)).votes


def coder(payload):
    (block,) = open_frame(payload.data).masks
    return block.data[0]


def divergence(asked, voted):
    """KL(q || p) in bits over all positions."""
    total = 0.0
    for name, own in voted.votes.items():
        p, q = asked.theta[name].double(), own.double()
        total += (q * (q / p).log2() + (1 - q) * ((1 - q) / (1 - p)).log2()).sum().item()
    return total


def test_masks_of_the_same_shapes_arrive_and_follow_from_the_key():
    asked, voted = pair((30, 40), (7,), (0, 3), (4, 5, 3, 3))
    first, again, other = (arrived(asked, voted, fold(k)) for k in (1, 1, 2))
    assert {n: m.shape for n, m in first.items()} == {n: q.shape for n, q in voted.votes.items()}
    assert all(m.dtype == torch.bool for m in first.values())
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["w0"], other["w0"])


def test_what_arrived_has_the_schema_of_what_was_sent_and_is_not_held():
    asked, voted = pair((30, 40))
    found = Voted(arrived(asked, voted))
    assert schema_of(found) == schema_of(voted)
    assert masks_of(found) == masks_of(voted) == {}


@pytest.mark.parametrize("moved", [0.1, 0.3, 1.0])
def test_a_block_takes_a_byte_and_has_four_bits_of_divergence(moved):
    asked, voted = pair((200, 300), moved=moved)
    bits = divergence(asked, voted)
    assert sent(asked, voted).mask_bytes == pytest.approx(bits / 4 + 11, abs=0.005 * bits + 2)


def test_probabilities_that_agree_take_eleven_bytes():
    asked, _ = pair((200, 300))
    payload = sent(asked, Voted(asked.theta))
    assert payload.mask_bytes == 1 + 8 + 1 + 1
    share = arrived(asked, Voted(asked.theta))["w0"].float().mean().item()
    assert share == pytest.approx(asked.theta["w0"].mean().item(), abs=0.01)


def test_bits_are_drawn_with_the_wanted_probabilities():
    """Blocks as full as can be, 3.94 bits each: 98.9 % of the way from p to q is gone.

    With odds of q / p themselves it is 88.7 %.
    """
    asked, voted = pair((96,), moved=1.05)
    p, q = asked.theta["w0"].numpy(), voted.votes["w0"].numpy()
    draws = 3000
    mean = sum(arrived(asked, voted, fold(k))["w0"].float() for k in range(draws)).numpy() / draws
    weight = (q - p) / (p * (1 - p))
    assert (weight @ (mean - p)) / (weight @ (q - p)) == pytest.approx(0.989, abs=0.015)
    deviation = (mean - q) / np.sqrt(q * (1 - q) / draws)
    assert np.sqrt(np.mean(deviation**2)) < 1.5
    assert np.abs(mean - q).max() < 0.04


def test_certain_bits_arrive_as_they_are():
    """Four bits of even odds in each block: of 256 masks about 16 have them all set."""
    asked = Asked({"w": torch.full((64,), 0.5)})
    wanted = torch.full((64,), 0.5)
    wanted[[0, 7, 20, 41]] = 1
    for key in range(50):
        assert arrived(asked, Voted({"w": wanted}), fold(key))["w"][[0, 7, 20, 41]].all()


def test_bits_are_coded_where_that_takes_less():
    asked, voted = pair((100, 100), moved=4.0)
    assert coder(sent(asked, voted)) == 6
    share = arrived(asked, voted)["w0"].float().mean().item()
    assert share == pytest.approx(voted.votes["w0"].mean().item(), abs=0.02)
    alone = encode(voted)  # an answer to nothing
    assert coder(alone) < 6
    found = Decoder().decode(alone.data, Voted).votes["w0"]
    assert found.float().mean().item() == pytest.approx(voted.votes["w0"].mean().item(), abs=0.02)


KEY, NUMBERS = 0x0123456789ABCDEF, (0, 5, 255)
BINS = (np.arange(50) * 5).astype(np.uint8)
BLOCK = bytes([7]) + KEY.to_bytes(8, "little") + bytes([3]) + bytes(NUMBERS)


def test_bytes_are_those_of_the_documented_layout():
    """Position by position: 3 blocks of 17, 17 and 16 positions, rows of 32 numbers."""
    words = np.random.Philox(key=KEY).random_raw(3 * 128 * 32 // 4)
    numbers = [int(w) >> shift & 0xFFFF for w in words for shift in (0, 16, 32, 48)]
    expected = []
    for j, k in enumerate(BINS.tolist()):
        block, place = j % 3, j // 3
        row, is_complement = divmod(NUMBERS[block], 2)
        number = numbers[(128 * block + row) * 32 + place]
        threshold = round(65536 * math.sin(math.pi * (k + 0.5) / 512) ** 2)
        expected.append((65535 - number if is_complement else number) < threshold)
    assert decode_drawn(memoryview(BLOCK), [BINS[:20], BINS[20:]]).tolist() == expected


def test_a_long_row_is_the_same_drawn_in_pieces():
    size, bins = 40_000, (np.arange(40_000) % 256).astype(np.uint8)
    block = bytes([7]) + KEY.to_bytes(8, "little") + bytes([1, 6])  # one block, row 3
    numbers = np.random.Philox(key=KEY).random_raw(4 * size // 4).view("<u2")[3 * size :]
    below = np.round(65536 * np.sin(np.pi * (bins + 0.5) / 512) ** 2)
    assert (decode_drawn(memoryview(block), [bins]) == (numbers < below)).all()


def test_golden_bytes():
    asked, voted = pair((192,), moved=0.8)
    (block,) = open_frame(sent(asked, voted, Key(1)).data).masks
    assert bytes(block.data).hex() == "0724ed7927ad2bee180576129512d9"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (b"", "1 bytes expected"),
        (b"\5" + BLOCK[1:], "coder 6 expected"),
        (BLOCK[:5], "8 bytes expected"),
        (BLOCK[:9] + b"\0", "at least one block"),
        (BLOCK[:9] + b"\4" + bytes(4), "at most 3 expected, found 4"),  # of 16 positions or more
        (BLOCK[:-1], "3 bytes expected, 2 left"),
        (BLOCK + b"\0", "1 bytes are left over"),
    ],
)
def test_other_bytes_are_refused(wrong, what):
    with pytest.raises(WireError, match=f"mask: .*{what}"):
        decode_drawn(memoryview(wrong), [BINS])


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan, math.inf])
def test_what_is_no_probability_is_refused(wrong):
    asked, voted = pair((30,))
    voted.votes["w0"][3] = wrong
    with pytest.raises(WireError, match="probabilities from 0 to 1"):
        sent(asked, voted)


def test_a_receiver_that_does_not_know_the_probabilities_refuses():
    asked, voted = pair((300, 10))
    with pytest.raises(UnheldError, match="votes: how likely its bits are is not known here"):
        Decoder().decode(sent(asked, voted).data, Voted)


def test_a_field_of_bits_has_no_drawn_ones():
    asked, voted = pair((300, 10))
    decoder = Decoder()
    with pytest.raises(WireError, match="expected a Coded message"):
        decoder.decode(sent(asked, voted).data, Coded, contexts=contexts_of(Coded, asked))


def test_the_broadcast_must_have_the_field():
    with pytest.raises(TypeError, match=r"Voted\.votes is Drawn\(given='theta'\), but Voted has"):
        contexts_of(Voted, pair((3,))[1])


@pytest.mark.parametrize("wire", ["fp32", "int8"])
def test_a_run_draws_from_what_clients_read_and_its_messages_can_be_inspected(wire, tmp_path):
    settings = SETTINGS | {"method": "fedpm", "votes": "drawn", "wire": wire, "rounds": 2}
    result = fedsieve.run(**settings, save_messages=(2,), out=tmp_path / "run")
    frames = [read_frame(path) for path in sorted((tmp_path / "run/messages").glob("*-up.frame"))]
    assert frames
    for frame in frames:
        empty, block = open_frame(frame.data).masks
        assert (bytes(empty.data), block.data[0]) == (b"\0", 7)
        found = inspect(frame)
        assert found.mask_bytes == 1 + len(block.data)
        assert sum(line.mask_bytes for line in found.lines) == pytest.approx(found.mask_bytes)
        assert {line.role for line in found.lines if line.mask_bytes} == {"drawn"}
    coded = fedsieve.run(**settings | {"votes": "coded"})
    assert result.rows[-1].up_bytes < 0.75 * coded.rows[-1].up_bytes
