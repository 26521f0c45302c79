"""The length of an update, and what is done about one that is too long."""

import math

import pytest
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.methods import fedavg, fediter_ht, flops
from fedsieve.robust.updates import Fixed, MedianNorm, clipped, norm, read_clip, scaled
from small import small_job

DOWN = fedavg.Down({"a": torch.ones(2), "b": torch.zeros(2, 2)}, 3)


def moved(a, b):
    return fedavg.Up({"a": torch.tensor(a), "b": torch.tensor(b)}, 5)


def test_an_update_is_the_distance_to_the_broadcast():
    assert norm(moved([1.0, 4.0], [[0.0, 4.0], [0.0, 0.0]]), DOWN) == pytest.approx(5)


def test_changes_count_as_they_are():
    up = flops.Up({"a": torch.tensor([3.0])}, {"a": torch.tensor([4.0])}, 5, 1)
    assert norm(up, flops.Down({"a": torch.tensor([9.0])}, {"a": torch.tensor([9.0])}, 0)) == 5


def test_what_was_not_sent_has_not_moved():
    mask = {"w": torch.tensor([True, False])}
    down = fediter_ht.Down({"w": torch.ones(2, dtype=torch.bool)}, {"w": torch.tensor([1.0, 7])}, 0)
    up = fediter_ht.Up(mask, {"w": torch.tensor([3.0, 0.0])}, 5)
    assert norm(up, down) == 2
    assert scaled(up, down, 0.5).weights["w"].tolist() == [2, 0]


def test_a_long_update_is_shortened_in_its_direction():
    long, short = moved([1.0, 4.0], [[0.0, 4.0], [0.0, 0.0]]), moved([1.0, 2.0], [[0.0] * 2] * 2)
    first, second = clipped(Fixed(2.5), [long, short], [DOWN, DOWN])
    assert first.weights["a"].tolist() == [1, 2.5]
    assert first.weights["b"].tolist() == [[0, 2], [0, 0]]
    assert second is short
    first, second = clipped(MedianNorm(0.5), [long, short], [DOWN, DOWN])  # norms 5, 1: median 3
    assert math.isclose(norm(first, DOWN), 1.5, rel_tol=1e-6)
    assert second is short


def test_what_cannot_be_is_refused():
    for text in ("fixed(0)", "fixed", "median_norm(-1)", "0", "-1", "three"):
        with pytest.raises(ConfigError):
            small_job(clip_update=text)


def test_a_number_is_a_fixed_norm():
    assert read_clip("2.5") == read_clip("fixed(2.5)") == Fixed(2.5)
    assert read_clip("median_norm(2)") == MedianNorm(2)
