"""Places of set bits: ranks against itertools, numbers among bits against numpy."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.core.errors import WireError
from fedsieve.wire.bits import Reader, set_places
from fedsieve.wire.places import FEW, numbers_among, places_among, rank_bytes, read_ranks


def there_and_back(*sets):
    data = rank_bytes(*sets)
    reader = Reader(data, "test")
    found = read_ranks(reader, *((places.size, size) for places, size in sets))
    reader.finish()
    assert [f.tolist() for f in found] == [places.tolist() for places, _ in sets]
    return data


@pytest.mark.parametrize(("size", "count"), [(1, 0), (1, 1), (6, 3), (9, 2), (9, 8), (11, 5)])
def test_ranks_number_all_sets_without_a_gap(size, count):
    ranks = {
        int.from_bytes(there_and_back((np.array(each, np.intp), size)), "little")
        for each in combinations(range(size), count)
    }
    assert ranks == set(range(comb(size, count)))


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, FEW)), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["first", "last", "any"]),
)
@settings(max_examples=150, deadline=None)
def test_sets_of_any_size_come_back_and_cost_their_information(shapes, seed, where):
    rng = np.random.default_rng(seed)
    sets, ways = [], 1
    for size, most in shapes:
        count = min(size, most)
        spread = {"first": count, "last": count, "any": size}[where]
        drawn = rng.choice(spread, count, replace=False) if spread < 1000 else (
            np.unique(rng.integers(0, spread, count)))  # fmt: skip
        places = np.sort(drawn) + (size - spread if where == "last" else 0)
        sets.append((places, size))
        ways *= comb(size, places.size)
    assert len(there_and_back(*sets)) == -(-(ways - 1).bit_length() // 8)


def test_a_number_beyond_all_ranks_is_refused():
    with pytest.raises(WireError, match="no rank"):
        read_ranks(Reader(bytes([60]), "test"), (3, 5), (1, 6))  # 10 * 6 of them
    with pytest.raises(WireError, match="2 bytes expected, 1 left"):
        read_ranks(Reader(bytes([60]), "test"), (3, 50))


@given(
    st.integers(1, 20_000), st.sampled_from([0.0, 0.001, 0.05, 0.5, 0.95, 1.0]), st.integers(0, 99)
)
@settings(max_examples=100, deadline=None)
def test_numbers_among_bits_and_their_places_are_inverse(size, density, seed):
    rng = np.random.default_rng(seed)
    bits = rng.random(size) < density
    assert set_places(bits).tolist() == np.flatnonzero(bits).tolist()
    for is_set in (True, False):
        places = np.flatnonzero(bits == is_set)
        numbers = np.unique(rng.integers(0, max(places.size, 1), 20))[: places.size]
        chosen = places[numbers]
        assert places_among(bits, numbers, is_set=is_set).tolist() == chosen.tolist()
        ones = numbers_among(bits, chosen)
        assert (ones if is_set else chosen - ones).tolist() == numbers.tolist()
