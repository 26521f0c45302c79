"""Roles of message fields, and the byte count that papers print."""

from typing import Annotated, NamedTuple

import pytest
import torch
from torch import Tensor

from fedsieve.core.message import (
    Bit,
    Bits,
    Count,
    Dense,
    Field,
    Kept,
    Natural,
    Number,
    Params,
    Scalar,
    Whole,
    count_nonzero,
    fields,
    paper_bytes,
)


class Up(NamedTuple):
    weights: Annotated[Params, Kept(where="mask")]
    mask: Bits
    dual: Scalar
    examples: Count
    gates: Dense


class Nothing(NamedTuple):
    pass


def test_roles_are_read_from_annotations_in_order():
    assert fields(Up) == (
        Field("weights", Kept("mask")),
        Field("mask", Bit()),
        Field("dual", Number()),
        Field("examples", Natural()),
        Field("gates", Whole()),
    )
    assert fields(Nothing) == ()
    assert fields(Up) is fields(Up)  # read once


@pytest.mark.parametrize("hint", [Params, Tensor, int, Annotated[Params, "dense"]])
def test_a_field_without_a_role_is_named(hint):
    class Message(NamedTuple):
        weights: Dense
        extra: hint

    with pytest.raises(TypeError, match=r"Message\.extra has no wire role"):
        fields(Message)


@pytest.mark.parametrize("where", ["gone", "weights", "examples"])
def test_kept_must_point_at_a_mask_of_the_same_message(where):
    class Message(NamedTuple):
        mask: Bits
        examples: Count
        weights: Annotated[Params, Kept(where)]

    with pytest.raises(TypeError, match=rf"weights is Kept\(where='{where}'\).*\['mask'\]"):
        fields(Message)


def test_papers_count_four_bytes_for_each_value_sent_and_nothing_else():
    message = Up(
        weights={"fc": torch.zeros(3, 4), "bias": torch.zeros(5)},
        mask={"fc": torch.arange(12).view(3, 4) < 7, "other": torch.ones(100).bool()},
        dual=0.5,
        examples=10,
        gates={"g": torch.zeros(2, 3, dtype=torch.float64), "none": torch.zeros(0)},
    )
    # 7 kept of fc, the unmasked bias whole, 6 gates.
    assert paper_bytes(message) == 4 * (7 + 5 + 6)
    assert paper_bytes(Nothing()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_all_but_zeros_of_either_sign_are_counted_whatever_the_layout(dtype):
    values = torch.tensor([[0, 1, -2], [3, -0.0, 0]]).to(dtype)
    assert count_nonzero(values) == count_nonzero(values.T) == count_nonzero(values != 0) == 3
    assert count_nonzero((values[:, :1] != 0).expand(2, 5)) == 5
    assert count_nonzero(torch.tensor([float("nan"), float("inf"), 1e-45])) == 3
    assert count_nonzero(torch.zeros(0)) == 0
    assert count_nonzero(torch.ones(2, requires_grad=True)) == 2
