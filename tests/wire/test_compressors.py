"""Compressors: what arrives, how large its error is, and what is refused.

Bounds are those of the papers; means over many draws are checked within five standard errors.
"""

import math
from itertools import pairwise

import numpy as np
import pytest

from fedsieve.core.errors import ConfigError, WireError
from fedsieve.core.keys import Key, fold
from fedsieve.wire.bits import Reader
from fedsieve.wire.compressors.base import Compressor, Floats
from fedsieve.wire.compressors.dense import Bf16, Fp16, Fp32, Int8
from fedsieve.wire.compressors.eden import LEVELS, Eden
from fedsieve.wire.compressors.groups import Groups
from fedsieve.wire.compressors.low_rank import LowRank
from fedsieve.wire.compressors.qsgd import Qsgd
from fedsieve.wire.compressors.signs import Sign
from fedsieve.wire.compressors.sparse import Beyond, RandK, Ternary, TopK
from fedsieve.wire.compressors.uniform import Uniform

EVERY = (
    Fp32(), Bf16(), Fp16(), Int8(), Sign(),
    *(Eden(bits=b) for b in (1, 2, 3, 4)), Eden(bits=2, unbiased=False),
    Uniform(step=2.0), Uniform(step=0.1), Uniform(dither=False),
    Qsgd(levels=1), Qsgd(levels=7, bucket=0), Groups(bits=2), Groups(bits=4, size=16),
    Groups(bits=8), TopK(0.1), TopK(0.1, Eden(bits=2)), Ternary(0.1), Beyond(2.0), RandK(0.1),
    LowRank(1),
)  # fmt: skip
UNBIASED = (
    Eden(bits=1, rotations=2), Eden(bits=3, rotations=2), Uniform(step=2.0), Int8(), RandK(0.25),
    Qsgd(levels=2, bucket=64), Groups(bits=2, size=32),
)  # fmt: skip


def through(compressor: Compressor, arrays: list[Floats], key: int = 1) -> tuple[list[Floats], int]:
    """What arrives, and in how many bytes."""
    data = b"".join(compressor.encode(arrays, Key(key)))
    sizes = [array.size for array in arrays]
    return compressor.decode(Reader(data, "test"), sizes, Key(key)), len(data)


def gaussian(*sizes: int, seed: int = 0) -> list[Floats]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(size).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("compressor", EVERY, ids=str)
@pytest.mark.parametrize("sizes", [(1,), (3, 0, 5), (200, 1, 5000, 77), (4096,), (9000,)])
def test_sizes_arrive(compressor: Compressor, sizes: tuple[int, ...]) -> None:
    arrived, _ = through(compressor, gaussian(*sizes))
    assert [array.size for array in arrived] == list(sizes)
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrived)


@pytest.mark.parametrize("compressor", EVERY, ids=str)
def test_zeros_arrive_as_zeros(compressor: Compressor) -> None:
    arrived, _ = through(compressor, [np.zeros(100, np.float32), np.zeros(3, np.float32)])
    error = 0.5 if isinstance(compressor, Uniform) else 0.0
    assert all(np.abs(array).max() <= error for array in arrived)


@pytest.mark.parametrize("compressor", UNBIASED, ids=str)
def test_the_mean_over_draws_is_what_was_sent(compressor: Compressor) -> None:
    (sent,) = gaussian(128, seed=3)
    draws = 10_000 if isinstance(compressor, Uniform | RandK) else 4_000
    arrived = np.stack([through(compressor, [sent], fold(5, n))[0][0] for n in range(draws)])
    error, spread = arrived.mean(0, dtype=float) - sent, arrived.std(0) / math.sqrt(draws)
    assert (np.abs(error) <= 5 * spread + 1e-6).all()


@pytest.mark.parametrize(
    ("bits", "error"), [(1, math.pi / 2 - 1), (2, 0.1331), (3, 0.0358), (4, 0.0096)]
)
def test_eden_has_the_error_of_its_paper(bits: int, error: float) -> None:
    sent = gaussian(200_000)[0] * np.linspace(0, 3, 200_000, dtype=np.float32) ** 4
    (arrived,), size = through(Eden(bits=bits), [sent])
    relative = np.square(arrived - sent).sum() / np.square(sent).sum()
    assert relative == pytest.approx(error, rel=0.03)
    assert 8 * size / sent.size <= {1: 1.02, 2: 1.94, 3: 2.86, 4: 3.82}[bits]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_levels_are_centroids_of_their_cells(bits: int) -> None:
    between = [(a + b) / 2 for a, b in pairwise(LEVELS[bits])]
    borders = [0.0, *between, math.inf]
    for level, low, high in zip(LEVELS[bits], borders, borders[1:], strict=False):
        density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in (low, high)]
        share = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
        assert level == pytest.approx((density[0] - density[1]) / share, abs=1e-4)


def test_uniform_errors_are_uniform_whatever_is_sent() -> None:
    sent = np.full(50_000, 0.3, np.float32)
    (arrived,), _ = through(Uniform(step=0.8), [sent])  # of rms 0.3, in 8 bits of mantissa
    error = arrived - sent
    assert np.abs(error).max() <= 0.12 * 1.008
    assert error.var() == pytest.approx(0.24**2 / 12, rel=0.03)


def test_qsgd_keeps_to_the_bound_of_its_paper() -> None:
    (sent,) = gaussian(512)
    errors = [
        np.square(through(Qsgd(levels=4, bucket=512), [sent], n)[0][0] - sent).sum()
        for n in range(300)
    ]
    bound = min(512 / 16, math.sqrt(512) / 4)
    assert np.mean(errors) <= bound * np.square(sent).sum()


def test_a_matrix_of_low_rank_arrives_whole() -> None:
    left, right, bias = gaussian(40 * 2, 30 * 2, 30)
    matrix = (left.reshape(40, 2) @ right.reshape(30, 2).T).reshape(-1)
    shapes = [(40, 5, 6), (30,)]
    data = b"".join(LowRank(2).encode_tables([matrix, bias], shapes, Key(1)))
    arrived = LowRank(2).decode_tables(Reader(data, "test"), shapes, Key(1))
    assert arrived[0] == pytest.approx(matrix, abs=1e-4)
    assert np.array_equal(arrived[1], bias)
    assert len(data) < 4 * (2 * (40 + 30) + 30)


def test_ternary_has_the_mean_magnitude_of_what_it_keeps() -> None:
    sent = np.array([0.1, -4.0, 0.2, 2.0, -0.1, 0.3, 0.0, 0.1, 0.1, 0.2], np.float32)
    (arrived,), _ = through(Ternary(0.2), [sent])
    assert arrived.tolist() == [0, -3, 0, 3, 0, 0, 0, 0, 0, 0]


def test_top_k_keeps_the_largest_as_they_are() -> None:
    first, second = gaussian(50, 50)
    arrived, _ = through(TopK(0.1), [first, second])
    both, kept = np.concatenate([first, second]), np.concatenate(arrived)
    largest = np.argsort(-np.abs(both))[:10]
    assert sorted(np.flatnonzero(kept)) == sorted(largest)
    assert np.array_equal(kept[largest], both[largest])


@pytest.mark.parametrize("compressor", EVERY, ids=str)
def test_damaged_bytes_are_refused_or_give_as_many_values(compressor: Compressor) -> None:
    sizes = (40, 300, 7)
    data = b"".join(compressor.encode(gaussian(*sizes), Key(1)))
    generator = np.random.default_rng(9)
    for _ in range(150):
        wrong = bytearray(
            data[: generator.integers(len(data) + 1)] if generator.random() < 0.3 else data
        )
        for place in generator.integers(len(data), size=2):
            if place < len(wrong):
                wrong[place] ^= 1 << int(generator.integers(8))
        try:
            with np.errstate(all="ignore"):
                arrived = compressor.decode(Reader(bytes(wrong), "test"), sizes, Key(1))
        except WireError:
            continue
        assert tuple(array.size for array in arrived) == sizes


@pytest.mark.parametrize(
    "build",
    [
        lambda: Eden(bits=5), lambda: Eden(bits=0), lambda: Uniform(step=0.0),
        lambda: Qsgd(levels=0),
        lambda: Groups(bits=1), lambda: TopK(0.0), lambda: RandK(1.5), lambda: Beyond(0.0),
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(build) -> None:
    with pytest.raises(ConfigError):
        build()


@pytest.mark.parametrize("compressor", [Qsgd(bucket=2**40), Groups(size=2**40)], ids=str)
def test_parameters_of_a_frame_do_not_decide_on_memory(compressor: Compressor) -> None:
    (arrived,), size = through(compressor, gaussian(100))
    assert arrived.size == 100
    assert size < 200
