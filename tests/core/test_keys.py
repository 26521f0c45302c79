"""Keys: equal addresses give equal draws, different addresses independent ones."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsieve.core.keys import (
    Key,
    fold,
    generator,
    normal,
    permutation,
    sample,
    torch_seed,
    uniform,
)

keys = st.integers(0, 2**64 - 1).map(Key)
parts = st.one_of(st.integers(-(2**100), 2**100), st.text(max_size=4))
paths = st.lists(parts, max_size=4).map(tuple)


def _typed(path):
    return [(type(part), part) for part in path]


@given(st.integers(0, 2**64 - 1), paths)
def test_the_same_address_gives_the_same_key_and_the_same_draws(key, path):
    assert fold(key, *path) == fold(key, *path)
    assert torch.equal(normal(fold(key, *path), (3,)), normal(fold(key, *path), (3,)))


@given(st.integers(0, 2**64 - 1), paths, paths)
def test_keys_differ_where_paths_do(key, a, b):
    assert (fold(key, *a) == fold(key, *b)) == (_typed(a) == _typed(b))


def test_joining_splitting_retyping_or_swapping_parts_gives_another_key():
    spelled = [("a", 2), ("a2",), ("1",), (1,), ("a", "b"), ("b", "a"), ("ab",), (), ("",), (0,)]
    assert len({fold(1, *path) for path in spelled}) == len(spelled)


def test_folding_twice_is_not_folding_a_longer_path():
    assert fold(fold(1, "a"), "b") != fold(1, "a", "b")


@given(keys, st.integers(0, 63))
def test_flipping_any_bit_of_a_key_changes_draws_and_folded_keys(key, bit):
    other = Key(key ^ (1 << bit))
    assert fold(key, "x") != fold(other, "x")
    assert generator(key).integers(2**63) != generator(other).integers(2**63)


def test_a_negative_seed_is_its_two_s_complement():
    assert fold(-1, "x") == fold(2**64 - 1, "x")


def test_keys_fit_64_bits_and_use_the_top_ones():
    drawn = [fold(0, i) for i in range(200)]
    assert all(0 <= key < 2**64 for key in drawn)
    # P(no key of 200 has its top bit set) = 2^-200.
    assert any(key >> 63 for key in drawn)


def test_uniform_draws_have_the_moments_of_the_unit_interval():
    count = 200_000
    draws = uniform(fold(0, "uniform"), (count,)).double()
    assert draws.min() >= 0
    assert draws.max() < 1
    # Five standard errors: the mean has sd sqrt(1/12/n), the mean square sqrt((1/5 - 1/9)/n).
    assert abs(draws.mean() - 1 / 2) < 5 * math.sqrt(1 / 12 / count)
    assert abs(draws.square().mean() - 1 / 3) < 5 * math.sqrt((1 / 5 - 1 / 9) / count)


def test_normal_draws_have_the_moments_of_a_standard_normal():
    count = 200_000
    draws = normal(fold(0, "normal"), (count,)).double()
    # E x = 0, E x^2 = 1, E x^3 = 0, E x^4 = 3, with variances 1, 2, 15 and 105 - 9.
    for power, (mean, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], 1):
        assert abs((draws**power).mean() - mean) < 5 * math.sqrt(variance / count)


def test_draws_are_float32_of_the_shape_asked_for():
    for draw in (uniform, normal):
        for shape in ((), (0,), (2, 3), torch.Size([4])):
            drawn = draw(fold(0), shape)
            assert drawn.shape == torch.Size(shape)
            assert drawn.dtype == torch.float32


def test_streams_of_neighbouring_addresses_are_uncorrelated():
    count = 50_000
    a, b = (normal(fold(0, "round", i), (count,)).double() for i in (1, 2))
    assert abs((a * b).mean()) < 5 / math.sqrt(count)


@given(keys, st.integers(0, 50))
def test_a_permutation_holds_every_index_once(key, count):
    assert sorted(permutation(key, count).tolist()) == list(range(count))


def test_every_place_of_a_permutation_is_equally_likely():
    count, size = 4000, 4
    first = [int(permutation(fold(0, i), size)[0]) for i in range(count)]
    sd = math.sqrt(count * 0.25 * 0.75)
    assert np.abs(np.bincount(first, minlength=size) - count / size).max() < 5 * sd


@given(keys, st.integers(1, 40), st.data())
def test_a_sample_is_sorted_and_distinct(key, count, data):
    size = data.draw(st.integers(0, count))
    drawn = sample(key, count, size)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == size
    assert set(drawn) <= set(range(count))


def test_every_member_is_sampled_equally_often():
    rounds, count, size = 3000, 10, 3
    drawn = [member for i in range(rounds) for member in sample(fold(0, i), count, size)]
    sd = math.sqrt(rounds * 0.3 * 0.7)
    assert np.abs(np.bincount(drawn, minlength=count) - rounds * size / count).max() < 5 * sd


@given(keys)
def test_a_torch_seed_is_one_that_torch_takes(key):
    assert 0 <= torch_seed(key) < 2**63
    torch.Generator().manual_seed(torch_seed(key))
