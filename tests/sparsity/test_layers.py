"""Allocation of weights to layers, dropping and growing, and the mean over those who hold one."""

import math

import pytest
import torch

from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.keys import Key
from fedsieve.sparsity import layers
from fedsieve.sparsity.layers import Allocation, Part


def graph(*shapes: tuple[int, ...]) -> LayerGraph:
    made = tuple(
        Layer(f"l{i}", "linear", f"l{i}.weight", None, shape, "a", 1, "b", 0)
        for i, shape in enumerate(shapes)
    )
    return LayerGraph(made, (), ())


LENET = graph((20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500))


@pytest.mark.parametrize("allocation", ["uniform", "erk", "erk_feddst"])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_allocations_keep_the_share_asked_for(allocation: Allocation, density: float) -> None:
    counts = layers.allocate(LENET, density, allocation)
    sizes = {x.weight: math.prod(x.shape) for x in LENET.layers}
    assert all(1 <= counts[name] <= size for name, size in sizes.items())
    assert sum(counts.values()) == pytest.approx(density * sum(sizes.values()), abs=len(sizes))


def test_erk_has_densities_in_proportion_to_sum_over_product() -> None:
    # ratios .2 and .1 of 100 and 400 weights: eps (20 + 40) = .3 * 500, so 50 and 100 of them
    assert layers.allocate(graph((10, 10), (20, 20)), 0.3, "erk") == {
        "l0.weight": 50,
        "l1.weight": 100,
    }


def test_erk_makes_a_layer_dense_before_it_asks_for_more_than_all() -> None:
    # at .6: eps 60 = 300 would give the first 100 of 100; at .7 it is full and 250 are left
    assert layers.allocate(graph((10, 10), (20, 20)), 0.7, "erk") == {
        "l0.weight": 100,
        "l1.weight": 250,
    }


def test_erk_of_feddst_has_sparsities_in_proportion_to_one_minus_the_ratio() -> None:
    # .8 and .9: c (80 + 360) = .5 * 500, so c = .5682 and 54.5 and 195.5 are kept
    assert layers.allocate(graph((10, 10), (20, 20)), 0.5, "erk_feddst") == {
        "l0.weight": 54,
        "l1.weight": 195,
    }


def test_the_smallest_weights_go_and_the_largest_scores_outside_come() -> None:
    weights = {"w": torch.tensor([[3.0, -1.0, 0.0], [2.0, -4.0, 0.0]])}
    mask = {"w": torch.tensor([[True, True, False], [True, True, False]])}
    scores = {"w": torch.tensor([[9.0, 0.5, -7.0], [1.0, 9.0, 0.1]])}
    left = layers.dropped(weights, mask, {"w": 2})
    assert left["w"].tolist() == [[True, False, False], [False, True, False]]
    after = layers.grown(scores, left, {"w": 2})
    assert after["w"].tolist() == [[True, False, True], [True, True, False]]


def test_growing_stops_at_a_full_layer() -> None:
    full = {"w": torch.tensor([True, True])}
    assert layers.grown({"w": torch.ones(2)}, full, {"w": 3})["w"].all()


def test_drawn_masks_have_their_counts_and_follow_the_key() -> None:
    counts = layers.allocate(LENET, 0.2, "erk")
    drawn = [layers.draw(LENET, counts, Key(seed)) for seed in (1, 1, 2)]
    assert all(layers.sizes(mask) == counts for mask in drawn)
    same = [torch.equal(drawn[0]["l2.weight"], other["l2.weight"]) for other in drawn[1:]]
    assert same == [True, False]


def test_the_overlap_mean_counts_those_who_hold_a_weight() -> None:
    old = {"w": torch.tensor([7.0, 7.0, 7.0]), "b": torch.tensor([0.0])}
    first = Part(
        {"w": torch.tensor([1.0, 5.0, 9.0]), "b": torch.tensor([1.0])},
        {"w": torch.tensor([True, True, False])},
        1.0,
    )
    second = Part(
        {"w": torch.tensor([4.0, 8.0, 9.0]), "b": torch.tensor([4.0])},
        {"w": torch.tensor([True, False, False])},
        2.0,
    )
    mean = layers.overlap_mean([first, second], otherwise=old)
    assert mean["w"].tolist() == [3.0, 5.0, 7.0]
    assert mean["b"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("share", "least", "kept"),
    [
        (0.25, 0.0, [False, True, True, True, False]),  # one of four
        (0.5, 0.0, [False, False, True, True, False]),
        (0.5, 0.6, [False, True, True, True, False]),  # three of five stay
        (0.9, 0.0, [False, False, False, True, False]),  # never the last
        (0.5, 1.0, [True, True, True, True, False]),
    ],
)
def test_pruning_cuts_a_share_of_what_is_kept_down_to_the_least(
    share: float, least: float, kept: list[bool]
) -> None:
    weights = {"w": torch.tensor([0.1, -0.2, 0.3, -0.4, 9.0])}
    mask = {"w": torch.tensor([True, True, True, True, False])}
    assert layers.pruned(weights, mask, share, least)["w"].tolist() == kept
