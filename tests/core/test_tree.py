"""Trees: flattening, comparing, hashing and averaging nested tuples and dicts of tensors."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.message import Count, Dense, Params, Scalar


class Inner(NamedTuple):
    weights: Params
    rounds: int


class Outer(NamedTuple):
    down: Dense
    inner: Inner
    moments: tuple[Params, ...]
    pair: tuple[Params, float]
    table: dict[str, Inner]
    nothing: tuple[()]
    dual: Scalar
    examples: Count
    gate: Tensor


numbers = st.floats(width=32)
tensors = st.lists(numbers, max_size=3).map(torch.tensor)
names = st.text("abc.", min_size=1, max_size=3)
params = st.dictionaries(names, tensors, max_size=3)
inners = st.builds(Inner, params, st.integers(0, 9))
filled = st.dictionaries(names, tensors, min_size=1, max_size=3)
outers = st.builds(
    Outer,
    down=params,
    inner=inners,
    moments=st.lists(filled, max_size=12).map(tuple),
    pair=st.tuples(params, numbers),
    table=st.dictionaries(names, inners, max_size=2),
    nothing=st.just(()),
    dual=numbers,
    examples=st.integers(0, 2**63),
    gate=tensors,
)


def _example():
    return Inner({"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[3.0]])}, 4)


@settings(max_examples=60)
@given(outers)
def test_rebuild_is_the_inverse_of_flatten(value):
    back = tree.rebuild(Outer, tree.flatten(value))
    assert type(back) is Outer
    assert type(back.inner) is Inner
    assert tree.equal(back, value)
    # equal() compares paths, which empty containers do not have: compare them by hand.
    assert [list(m) for m in back.moments] == [list(m) for m in value.moments]
    assert list(back.table) == list(value.table)
    assert back.nothing == ()


def test_paths_name_fields_keys_and_positions():
    value = ({"w": 1}, _example())
    assert list(tree.flatten(value)) == ["0/w", "1/weights/a", "1/weights/b", "1/rounds"]
    assert tree.flatten(5) == {"": 5}


def test_names_with_slashes_come_back_whole():
    moments = {"step": torch.tensor(1), "first/fc.weight": torch.tensor([2.0])}
    assert tree.equal(tree.rebuild(Params, tree.flatten(moments)), moments)


def test_map_leaves_keeps_types_and_pairs_leaves_by_name():
    one, two = _example(), Inner(dict(reversed(_example().weights.items())), 10)
    total = tree.map_leaves(lambda a, b: a + b, one, two)
    assert type(total) is Inner
    assert total.rounds == 14
    assert all(torch.equal(total.weights[n], 2 * one.weights[n]) for n in one.weights)
    assert tree.map_leaves(lambda x: -x, (1, {"a": 2})) == (-1, {"a": -2})


def test_map_leaves_refuses_tuples_of_another_length():
    with pytest.raises(ValueError):
        tree.map_leaves(lambda a, b: a, (1, 2), (1,))


def test_a_clone_shares_no_memory():
    value = _example()
    copy = tree.clone(value)
    assert tree.equal(copy, value)
    copy.weights["a"].zero_()
    assert value.weights["a"].tolist() == [1.0, -2.0]


def _variants():
    """Trees that all differ: by name, shape, type, bit, kind of number or nesting."""
    zero = torch.zeros(2)
    return [
        {"a": zero},
        {"b": zero},
        {"a": zero.view(2, 1)},
        {"a": torch.zeros(1)},
        {"a": zero.double()},
        {"a": zero.to(torch.int32)},
        {"a": -zero},
        {"a": torch.tensor([0.0, 1e-45])},
        {"a": torch.tensor([0.0, torch.nan])},
        {"a": zero, "b": zero},
        {"a": {"b": zero}},
        (zero,),
        {},
        {"a": 0},
        {"a": 0.0},
        {"a": -0.0},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": torch.tensor(0.0, dtype=torch.float64)},
        {"a": 2**53},
        {"a": 2**53 + 1},
    ]


def test_trees_are_equal_and_have_equal_digests_only_to_themselves():
    for i, a in enumerate(_variants()):
        for j, b in enumerate(_variants()):
            assert tree.equal(a, b) == (i == j), (a, b)
            assert (tree.digest(a) == tree.digest(b)) == (i == j), (a, b)


@settings(max_examples=40)
@given(outers, outers)
def test_digests_are_equal_exactly_where_trees_are(a, b):
    assert tree.equal(a, tree.clone(a))
    assert tree.digest(a) == tree.digest(tree.clone(a))
    assert tree.equal(a, b) == (tree.digest(a) == tree.digest(b))


def test_neither_order_of_names_nor_memory_layout_nor_gradients_matter():
    a, b = torch.randn(2, 3, 4, 5), torch.randn(3)
    one = {"a": a, "b": b}
    two = {"b": b.clone().requires_grad_(), "a": a.to(memory_format=torch.channels_last)}
    assert tree.equal(one, two)
    assert tree.digest(one) == tree.digest(two)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_nan_or_infinity_anywhere_makes_a_tree_not_finite(bad):
    assert tree.is_finite(_example())
    assert not tree.is_finite(Inner({"a": torch.tensor([1.0, bad])}, 1))
    assert not tree.is_finite((1, {"x": float(bad)}))
    assert tree.is_finite({"mask": torch.tensor([True]), "step": torch.tensor(3)})


def test_size_counts_tensor_bytes_only():
    assert tree.size_bytes(_example()) == 4 * (2 + 1)
    assert tree.size_bytes({"m": torch.zeros(5, dtype=torch.bool), "n": 7}) == 5


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 5)), min_size=1, max_size=6))
def test_weighted_mean_is_numpy_s_average_and_leaves_its_inputs_alone(pairs):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    grid = values[:, None] * np.array([1.0, -2.0, 0.5])
    models = [
        {"w": torch.from_numpy(row), "b": torch.tensor(v)}
        for row, v in zip(grid, values, strict=True)
    ]
    before = tree.clone(tuple(models))
    mean = tree.weighted_mean(zip(models, weights.tolist(), strict=True))
    np.testing.assert_allclose(mean["w"], np.average(grid, axis=0, weights=weights), atol=1e-12)
    assert float(mean["b"]) == pytest.approx(np.average(values, weights=weights), abs=1e-6)
    assert tree.equal(before, tuple(models))


def test_weighted_mean_takes_a_stream_and_whole_numbers_as_weights():
    stream = (({"w": torch.tensor([float(k)])}, k) for k in (1, 2, 3))
    assert tree.weighted_mean(stream)["w"].item() == pytest.approx((1 + 4 + 9) / 6)


@given(st.integers(1, 4), st.integers(0, 3))
def test_unstack_is_the_inverse_of_stack(count, size):
    models = [{"w": torch.randn(size, 2), "b": torch.randn(())} for _ in range(count)]
    stacked = tree.stack(models)
    assert stacked["w"].shape == (count, size, 2)
    assert tree.equal(tuple(tree.unstack(stacked)), tuple(models))


def test_distances_are_those_of_the_flattened_models():
    a = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor(5.0)}
    b = {"w": torch.tensor([[4.0, -2.0]]), "b": torch.tensor(5.0)}
    assert tree.sq_dist(a, b).item() == 3**2 + 4**2
    assert tree.l1_dist(a, b).item() == 3 + 4
    assert tree.subtract(a, b)["w"].tolist() == [[-3.0, 4.0]]


def test_gradients_of_distances_are_twice_the_difference_and_its_sign():
    a = {"w": torch.tensor([1.0, 2.0, 3.0], requires_grad=True)}
    b = {"w": torch.tensor([4.0, 2.0, 1.0])}
    (square,) = torch.autograd.grad(tree.sq_dist(a, b), [a["w"]])
    (absolute,) = torch.autograd.grad(tree.l1_dist(a, b), [a["w"]])
    assert square.tolist() == [2 * (1 - 4), 0, 2 * (3 - 1)]
    assert absolute.tolist() == [-1, 0, 1]


def test_a_sum_may_be_divided_by_a_number_of_its_own():
    terms = [({"w": torch.tensor([2.0, 4.0])}, 1), ({}, 1), ({"w": torch.tensor([1.0, 2.0])}, 1)]
    assert tree.weighted_mean(iter(terms), by=6)["w"].tolist() == [0.5, 1.0]
    assert tree.weighted_mean(iter(()), by=6) == {}


def test_leaves_that_were_checked_are_not_looked_at_again():
    spoilt, sound = torch.tensor([1.0, float("nan")]), torch.ones(2)
    assert not tree.is_finite({"a": spoilt, "b": sound})
    assert tree.is_finite({"a": spoilt, "b": sound}, checked={"x": spoilt})
    assert not tree.is_finite({"a": spoilt.clone(), "b": sound}, checked={"x": spoilt})
