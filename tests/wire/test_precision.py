"""Precisions of float32 values: what each keeps, and what rounding takes."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Dense, Exact
from fedsieve.methods.fedmix import SHARES, Down
from fedsieve.wire import precision as precision_of
from fedsieve.wire.codec import Coding, Decoder, encode
from fedsieve.wire.compressors import NAMED
from fedsieve.wire.precision import GROUP, PRECISIONS, decode_floats

SPECIAL = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 3.4028235e38, -3.4028235e38, np.inf, -np.inf],
    np.float32,
)
STEP = 1.00001 / 127  # of a scale, with what float32 arithmetic adds


def encode_floats(values, precision, key):
    return b"".join(precision_of.encode_floats([values], precision, key))


def sent(values, precision, key=0):
    """The values as they arrive."""
    array = np.asarray(values, np.float32)
    data = encode_floats(array, precision, Key(key))
    found = decode_floats(memoryview(data), array.size, precision)
    assert found.dtype == np.float32
    return found


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


def any_bits(count):
    """Random bit patterns, every kind of NaN among them, and special values."""
    patterns = np.random.default_rng(0).integers(0, 2**32, count, np.uint32).view(np.float32)
    return np.concatenate([patterns, SPECIAL, np.array([np.nan, -np.nan], np.float32)])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("count", [0, 1, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP + 7])
def test_every_count_comes_back(precision, count):
    values = np.random.default_rng(count).normal(size=count).astype(np.float32)
    found = sent(values, precision)
    assert found.shape == (count,)
    assert np.abs(found - values).max(initial=0) <= np.abs(values).max(initial=0) * STEP


def test_fp32_is_exact():
    values = any_bits(50_000)
    assert np.array_equal(bits(sent(values, "fp32")), bits(values))


def test_bf16_is_the_rounding_of_torch():
    halves = np.arange(2**16, dtype=np.uint32) << 16
    ties, near = halves | 0x8000, halves | 0x7FFF
    values = np.concatenate([bits(any_bits(100_000)), halves, ties, near, ties + 1])
    values = values.view(np.float32)
    found, expected = sent(values, "bf16"), torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(np.isnan(found), np.isnan(values))
    number = ~np.isnan(values)  # torch itself writes NaN in more than one way
    assert np.array_equal(bits(found)[number], bits(expected)[number])


def test_a_tie_between_bfloat16_neighbours_goes_to_the_even_one():
    # 7 bits of mantissa: 1 + 2^-7 and 1 + 2^-6 are neighbours of 1; halfway lies 2^-8.
    assert sent([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], "bf16").tolist() == [1, 1 + 2**-6, -1]


def test_fp16_is_the_rounding_of_numpy_and_torch_within_its_range():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    ties = (finite[1:] + finite[:-1]) / 2
    above = np.nextafter(ties, np.float32(np.inf))
    small = any_bits(100_000)
    small = small[np.abs(small) <= 65504]
    values = np.concatenate([halves, ties, above, small])
    found = sent(values, "fp16")
    number = ~np.isnan(values)
    assert np.array_equal(np.isnan(found), ~number)
    with np.errstate(over="ignore"):
        by_numpy = values.astype(np.float16).astype(np.float32)
    by_torch = torch.from_numpy(values).half().float().numpy()
    for expected in (by_numpy, by_torch):
        assert np.array_equal(bits(found)[number], bits(expected)[number])


def test_fp16_clips_what_is_finite_and_beyond_its_range():
    values = [65504, 65519.99, 65520, 1e5, 3.4e38, -65520, -1e38]
    assert sent(values, "fp16").tolist() == [65504] * 5 + [-65504] * 2


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(precision, odd):
    # Otherwise a client that diverged would not be left out.
    values = np.ones(3 * GROUP, np.float32)
    values[GROUP + 5] = odd
    found = sent(values, precision)
    assert not np.isfinite(found[GROUP + 5])
    assert np.isfinite(found[:GROUP]).all()
    assert np.isfinite(found[2 * GROUP :]).all()


@pytest.mark.parametrize("x", [0.3, -0.7, 1e-3, -1.0, 0.0, 0.99999, 2 / 127])
def test_int8_is_unbiased(x):
    # Many copies of x in groups of scale 1, under many keys: each draw is its own.
    group = np.full(GROUP, x, np.float32)
    group[0] = 1
    draws = np.concatenate([sent(group, "int8", fold(1, "draw", k))[1:] for k in range(10)])
    draws = draws[:10_000].astype(np.float64)
    error = np.abs(draws - x)
    assert error.max() <= STEP
    assert abs(draws.mean() - np.float32(x)) <= 4 * draws.std() / 100 + 1e-7


def test_one_value_under_many_keys_is_unbiased():
    values = np.array([1.0, 0.4, -0.123], np.float32)
    draws = np.array([sent(values, "int8", fold(2, "draw", k)) for k in range(2_000)], np.float64)
    assert (np.abs(draws.mean(0) - values) <= 4 * draws.std(0) / 2_000**0.5 + 1e-7).all()
    assert len(np.unique(draws[:, 1])) == 2  # the steps below and above


def test_fields_are_rounded_by_draws_of_their_own():
    class Two(NamedTuple):
        x: Dense
        y: Dense

    values = torch.full((20_000,), 0.5 / 127)  # as often up as down
    values[::GROUP] = 1
    message = Two({"w": values}, {"w": values})
    data = encode(message, coding=Coding(NAMED["int8"], Key(5))).data
    back = Decoder().decode(data, Two)
    x, y = (field["w"] - values for field in back)
    # The correlation of independent errors is within 4 / sqrt(n) of 0; of equal ones it is 1.
    assert abs(float((x * y).mean() / (x.std() * y.std()))) < 4 / 20_000**0.5


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 3000),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-44, 1e-38, 1e-30, 1.0, 1e30, 3e38]),
)
def test_int8_is_within_a_step_of_each_group_at_any_scale(count, seed, scale):
    rng = np.random.default_rng(seed)
    values = (rng.uniform(-1, 1, count) * scale).astype(np.float32)
    values[rng.random(count) < 0.2] = 0
    found = sent(values, "int8", seed)
    for start in range(0, count, GROUP):
        part, back = values[start : start + GROUP], found[start : start + GROUP]
        largest = np.abs(part).max()
        error = np.abs(part.astype(np.float64) - back)
        assert error.max() <= largest * STEP + 1e-45  # and the smallest of all floats
        at = np.abs(part).argmax()
        assert back[at] == part[at]  # the largest is exact
        assert (back[part == 0] == 0).all()


def test_int8_groups_have_scales_of_their_own():
    values = np.concatenate([np.zeros(GROUP), np.full(GROUP, 1e-6), np.full(10, 1e6)])
    found = sent(values, "int8")
    assert np.array_equal(found, values.astype(np.float32))
    data = encode_floats(values.astype(np.float32), "int8", Key(0))
    assert np.frombuffer(data[:12], "<f4").tolist() == [0, np.float32(1e-6), 1e6]


def test_the_same_key_gives_the_same_bytes_and_another_gives_others():
    values = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    for precision in PRECISIONS:
        first, again, other = (encode_floats(values, precision, Key(k)) for k in (7, 7, 8))
        assert first == again
        assert (first == other) == (precision != "int8")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_exact_fields_are_never_rounded(precision):
    class Both(NamedTuple):
        rounded: Dense
        kept: Exact

    values = {"w": torch.from_numpy(any_bits(3000))}
    back = Decoder().decode(
        encode(Both(values, values), coding=Coding(NAMED[precision])).data, Both
    )
    assert tree.equal(back.kept, values)
    assert tree.equal(back.rounded, values) == (precision == "fp32")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_shares_of_fedmix_arrive_exactly(precision):
    shares = torch.tensor([1 / 3, 1 / 7, 11 / 21])
    down = Down({"w": torch.randn(3, 50)}, {SHARES: shares}, 4)
    back = Decoder().decode(encode(down, coding=Coding(NAMED[precision])).data, Down)
    assert torch.equal(back.shares[SHARES], shares)


def test_each_precision_takes_fewer_bytes():
    values = np.random.default_rng(1).normal(size=100_000).astype(np.float32)
    size = {p: len(encode_floats(values, p, Key(0))) / values.size for p in PRECISIONS}
    # Mantissas of 23, 10 and 7 bits and a sign; about 2.6 bits of a normal's exponent remain.
    assert 3.1 < size["fp32"] < 3.5
    assert 1.5 < size["fp16"] < 1.8
    assert 1.2 < size["bf16"] < 1.4
    assert size["int8"] < 1
