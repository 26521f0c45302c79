"""Whole numbers: every range, Huffman codes where they are as good, and what is refused."""

import numpy as np
import pytest

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import Reader
from fedsieve.wire.integers import MAX_NUMBER, decode_integers, encode_integers


def joined(arrays):
    return b"".join(bytes(piece) for piece in encode_integers(arrays))


def drawn(spread, size=20_000):
    rng = np.random.default_rng(0)
    return np.rint(rng.normal(0, spread, size)).astype(np.int32)


@pytest.mark.parametrize("spread", [0, 0.2, 1, 4, 20, 300, 1e6])
def test_numbers_of_any_spread_arrive_near_their_entropy(spread):
    numbers = drawn(spread)
    data = joined([numbers])
    (arrived,) = decode_integers(Reader(data, "test"), [numbers.size])
    assert np.array_equal(arrived, numbers)
    if spread < 100:  # beyond, so many draws do not show their own entropy
        _, counts = np.unique(numbers, return_counts=True)
        entropy = counts @ np.log2(numbers.size / counts) / 8
        assert len(data) <= 1.03 * entropy + 128


def test_rare_numbers_up_to_the_largest_arrive():
    numbers = drawn(1)
    numbers[[3, 77, 19_999]] = [MAX_NUMBER, -MAX_NUMBER, 5000]
    arrived = decode_integers(Reader(joined([numbers, numbers[:5]]), "test"), [numbers.size, 5])
    assert np.array_equal(arrived[0], numbers)
    assert np.array_equal(arrived[1], numbers[:5])


def test_a_digit_beyond_its_range_is_refused():
    numbers = np.tile(np.arange(-31, 32, dtype=np.int32), 200)
    data = bytearray(joined([numbers]))
    head = data[0]  # length of what is known before symbols: range, shift, places
    assert data[1] & 128, "Huffman codes are taken for wide ranges"
    data[1] = 128 | 2  # a range of 2; the largest digit is 31 + (31 >> 2)
    with pytest.raises(WireError, match="digits up to 4 expected, found 38"):
        decode_integers(Reader(bytes(data), "test"), [numbers.size])
    assert head == 3
