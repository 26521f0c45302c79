"""Masks: exact counts, ties, and zeros that are zero."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsieve.sparsity import masks

NAMES = ("a", "b", "c")
sizes = st.tuples(st.integers(0, 6), st.integers(1, 4))
values = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0])


@st.composite
def weights(draw):
    """Three tensors with many ties, one of them a scalar."""
    rows, columns = draw(sizes)
    numbers = draw(st.lists(values, min_size=rows * columns + 3, max_size=rows * columns + 3))
    flat = torch.tensor(numbers)
    return {
        "a": flat[: rows * columns].view(rows, columns),
        "b": flat[rows * columns : -1],
        "c": flat[-1],
    }


@given(weights(), st.integers(-2, 40))
def test_top_k_keeps_exactly_the_largest_and_of_equals_the_first(params, kept):
    mask = masks.top_k(params, NAMES, kept)
    flat = np.concatenate([params[n].abs().numpy().reshape(-1) for n in NAMES])
    # A stable sort by falling magnitude lists equals in their order.
    largest = np.argsort(-flat, kind="stable")[: max(kept, 0)]
    expected = np.isin(np.arange(len(flat)), largest)
    found = np.concatenate([mask[n].numpy().reshape(-1) for n in NAMES])
    assert found.tolist() == expected.tolist()
    assert all(mask[n].shape == params[n].shape and mask[n].dtype == torch.bool for n in NAMES)


LARGE = 3 * 4096 + 5  # so large that the edge is looked for in a sample first


def large(kind, rng):
    if kind == "normal":
        return rng.normal(size=LARGE)
    if kind == "mostly zero":
        return rng.normal(size=LARGE) * (rng.random(LARGE) < 0.1)
    if kind == "few values":
        return rng.choice([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0], size=LARGE)
    if kind == "equal":
        return np.full(LARGE, -3.0)
    if kind == "rising":  # sorted: a sample of every third is in order as well
        return np.sort(np.abs(rng.normal(size=LARGE)))
    # Values that a sample of every third never meets: it misleads about where the edge is.
    return np.where(np.arange(LARGE) % 3 == 0, 0.01, 1.0) * rng.random(LARGE)


@pytest.mark.parametrize(
    "kind", ["normal", "mostly zero", "few values", "equal", "rising", "misleading"]
)
def test_top_k_of_large_tensors_is_that_of_a_stable_sort(kind):
    rng = np.random.default_rng(7)
    flat = large(kind, rng).astype(np.float32)
    params = {"a": torch.from_numpy(flat[:5000]).view(50, 100), "b": torch.from_numpy(flat[5000:])}
    order = np.argsort(-np.abs(flat), kind="stable")
    chosen = [1, 2, 100, 1000, LARGE // 3, LARGE // 2, LARGE - 1000, LARGE - 2, LARGE - 1, LARGE]
    for kept in [*chosen, *rng.integers(1, LARGE, size=20).tolist()]:
        mask = masks.top_k(params, ("a", "b"), kept)
        found = np.concatenate([mask[n].numpy().reshape(-1) for n in ("a", "b")])
        expected = np.zeros(LARGE, dtype=bool)
        expected[order[:kept]] = True
        assert np.array_equal(found, expected), kept


def test_top_k_compares_across_tensors_and_reads_them_in_logical_order():
    params = {"a": torch.tensor([[5.0, 1.0], [1.0, 4.0]]).T, "b": torch.tensor([-6.0, 0.0])}
    mask = masks.top_k(params, ("a", "b"), 4)
    # 6, 5, 4 and then the first of the two ones, a[0, 1].
    assert mask["a"].tolist() == [[True, True], [False, True]]
    assert mask["b"].tolist() == [True, False]


def test_tensors_that_are_not_named_have_no_mask():
    params = {"a": torch.ones(2), "bias": torch.ones(2)}
    assert masks.top_k(params, ("a",), 1).keys() == {"a"}
    assert masks.nonzero(params, ("a",)).keys() == {"a"}


@given(weights())
def test_the_support_of_masked_weights_is_the_mask_without_the_zeros_that_were(params):
    mask = masks.top_k(params, NAMES, 3)
    support = masks.nonzero(masks.apply(params, mask), NAMES)
    assert all(torch.equal(support[n], mask[n] & (params[n] != 0)) for n in NAMES)


@pytest.mark.parametrize("value", [3.0, -3.0, torch.inf, -torch.inf, torch.nan])
def test_what_is_masked_out_becomes_a_plain_zero_whatever_it_was(value):
    params = {"a": torch.tensor([value, value]), "bias": torch.tensor([value])}
    applied = masks.apply(params, {"a": torch.tensor([False, True])})
    assert applied["a"].view(torch.int32)[0] == 0  # not -0.0, whose sign bit is set
    assert torch.equal(applied["a"][1:].isnan(), params["a"][1:].isnan())
    assert applied["bias"] is params["bias"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_applying_a_mask_keeps_type_and_input(dtype):
    params = {"a": torch.tensor([1, 2, 3], dtype=dtype)}
    applied = masks.apply(params, {"a": torch.tensor([True, False, True])})
    assert applied["a"].dtype == dtype
    assert applied["a"].tolist() == [1, 0, 3]
    assert params["a"].tolist() == [1, 2, 3]


def test_no_gradient_reaches_a_weight_that_is_masked_out():
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    applied = masks.apply({"a": weight}, {"a": torch.tensor([True, False])})
    (grad,) = torch.autograd.grad(applied["a"].square().sum(), [weight])
    assert grad.tolist() == [2.0, 0.0]


def test_density_is_the_share_kept_over_all_tensors():
    mask = {"a": torch.tensor([[True, False], [False, False]]), "b": torch.ones(2).bool()}
    assert masks.density(mask) == 3 / 6
    assert masks.density({"a": torch.zeros(3).bool()}) == 0
    assert masks.density({"a": torch.ones(3).bool()}) == 1
    assert masks.density({}) == 1  # nothing may be cut: everything is kept


def test_apply_keeps_the_layout_of_values_whatever_that_of_the_mask_is():
    kernel = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    mask = torch.rand(4, 3, 5, 5) < 0.5
    left = masks.apply({"conv": kernel}, {"conv": mask})["conv"]
    assert left.stride() == kernel.stride() != mask.stride()
    assert torch.equal(left, torch.where(mask, kernel, 0))


def test_a_completed_mask_has_a_bit_for_each_value_and_keeps_what_it_did_not_name():
    params = {"a": torch.zeros(2, 2), "b": torch.zeros(3)}
    found = masks.completed({"a": torch.tensor([[True, False]]), "x": torch.ones(1) > 0}, params)
    assert {name: mask.tolist() for name, mask in found.items()} == {
        "a": [[True, False], [True, False]],
        "b": [True, True, True],
    }
