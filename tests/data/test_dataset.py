"""Conversion to model inputs and the checks of a data set."""

from dataclasses import replace

import pytest
import torch

from fedsieve.core.errors import DataError
from fedsieve.data.dataset import Dataset, standardise


def images(**changes):
    plain = Dataset(
        name="toy",
        x=torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).view(2, 4, 5, 3),
        y=torch.tensor([0, 1]),
        x_test=torch.zeros(1, 4, 5, 3, dtype=torch.uint8),
        y_test=torch.tensor([2]),
        kind="classes",
        num_outputs=3,
        layout="images",
    )
    return replace(plain, **changes)


def rows(**changes):
    plain = Dataset(
        name="toy",
        x=torch.ones(3, 2),
        y=torch.zeros(3),
        x_test=torch.ones(1, 2),
        y_test=torch.zeros(1),
        kind="values",
        num_outputs=1,
        layout="rows",
    )
    return replace(plain, **changes)


def test_images_become_nchw_in_channels_last_memory():
    data = images()
    x = data.inputs(data.x)
    assert data.input_shape == (3, 4, 5)
    assert x.shape == (2, 3, 4, 5)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x[1, 2, 3, 4] == data.x[1, 3, 4, 2]


def test_scale_and_shift_act_on_each_channel():
    data = images(scale=(1.0, 2.0, 3.0), shift=(0.0, 10.0, 20.0))
    x = data.inputs(data.x)
    for channel in range(3):
        expected = data.x[..., channel].float() * (channel + 1) + 10 * channel
        assert x[:, channel].equal(expected)


def test_conversion_leaves_the_stored_examples_alone():
    data = rows(scale=2.0, shift=1.0)
    assert data.inputs(data.x).equal(torch.full((3, 2), 3.0))
    assert data.x.equal(torch.ones(3, 2))


def test_float_rows_without_scale_are_passed_through_without_a_copy():
    data = rows()
    assert data.inputs(data.x).data_ptr() == data.x.data_ptr()


def test_standardise_maps_the_mean_to_zero_and_one_deviation_above_it_to_one():
    grey = standardise((0.5,), (0.25,))
    assert 127.5 * grey.scale + grey.shift == pytest.approx(0)
    assert 191.25 * grey.scale + grey.shift == pytest.approx(1)
    colour = standardise((0.5, 0.2), (0.25, 0.1), top=16)
    assert 3.2 * colour.scale[1] + colour.shift[1] == pytest.approx(0)


def test_labels_of_scores_follow_the_kind():
    scores = torch.tensor([[-1.0, 2.0], [3.0, 0.5]])
    assert images().label(scores).tolist() == [1, 0]
    assert rows(kind="labels").label(scores).tolist() == [[0, 1], [1, 1]]
    assert rows().label(scores).tolist() == [-1, 3]


def test_sound_data_passes():
    images().check()
    rows().check()
    rows(kind="labels", num_outputs=2, y=torch.ones(3, 2), y_test=torch.zeros(1, 2)).check()
    rows(owners=torch.tensor([0, 7, 7]), owners_test=torch.tensor([7])).check()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rows(x=torch.tensor([[1, 1], [1, float("nan")], [1, 1]])), r"x\[1, 1\] is nan; .*finite"),
        (rows(x_test=torch.tensor([[float("inf"), 0]])), r"x_test\[0, 0\] is inf"),
        (rows(y=torch.tensor([0, 0, float("nan")])), r"y\[2\] is nan"),
        (rows(y=torch.zeros(2)), "x has 3 examples, y has 2"),
        (rows(x=torch.ones(0, 2), y=torch.zeros(0)), "x is empty"),
        (rows(x_test=torch.ones(1, 4)), "must be alike"),
        (rows(x=torch.ones(3, 2, dtype=torch.float64)), "x with layout 'rows' must have 2"),
        (rows(y=torch.zeros(3, dtype=torch.int64)), "y of kind 'values' must be torch.float32"),
        (rows(owners=torch.tensor([0, -1, 2])), r"owners\[1\] is -1"),
        (rows(owners=torch.tensor([0, 1])), "owners must be int64"),
        (rows(layout="text"), "layout='text'"),
        (images(scale=(1.0, 2.0)), "scale has 2 numbers for 3 channels"),
        (images(y_test=torch.tensor([3])), r"y_test\[0\] is 3; classes must lie in 0..2"),
        (images(y=torch.tensor([0, -1])), r"y\[1\] is -1"),
        (
            rows(kind="labels", y=torch.full((3, 1), 0.5), y_test=torch.zeros(1, 1)),
            r"y\[0, 0\] is 0.5; labels must be 0 or 1",
        ),
        (
            rows(
                layout="tokens",
                kind="classes",
                num_outputs=4,
                x=torch.full((3, 2), 4),
                y=torch.tensor([0, 1, 2]),
            ),
            r"x\[0, 0\] is 4; tokens must lie in 0..3",
        ),
    ],
)
def test_malformed_data_is_refused_with_the_place_and_the_rule(data, message):
    with pytest.raises(DataError, match=message):
        data.check()


def test_other_scales_put_0_at_0_and_the_largest_stored_value_at_1_or_255():
    data = images(x=torch.tensor([0, 8, 16], dtype=torch.uint8).view(3, 1, 1, 1), scale=3.0)
    assert data.scaled("unit").inputs(data.x).flatten().tolist() == [0, 0.5, 1]
    assert data.scaled("raw255").inputs(data.x).flatten().tolist() == [0, 127.5, 255]
    assert data.scaled("standard") is data
    with pytest.raises(DataError, match="is for images"):
        rows().scaled("unit")
