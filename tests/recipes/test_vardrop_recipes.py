"""Volumes expected of variational dropout follow from our models and the paper's percentages."""

import pytest

from fedsieve.jobs.library import find_or_run
from fedsieve.recipes.papers.sizes import COLOUR32, GREY28, sizes, trainable
from fedsieve.recipes.recipe import METRICS, find

CIFARNET = (25 + 1) * 64 + (25 * 64 + 1) * 64 + (3136 + 1) * 384 + (384 + 1) * 192 + (192 + 1) * 10

# convolutions as SpaFL counts them, then scale and shift of each BatchNorm: stem and four stages
RESNET18 = 11_159_232 + 2 * (64 + 256 + 448 + 896 + 1792)


def volume(recipe, label):
    (row,) = (row for row in find(recipe).rows if row.label == label)
    (found,) = (x for x in row.expected if x.metric == "paper_gib_per_client")
    return found.bound


@pytest.mark.parametrize(
    ("devices", "low", "high"), [(4, 18.2 - 3, 18.2 + 3), (8, 14.7, 24.3), (16, 16.1, 26.3)]
)
def test_a_device_sends_its_share_of_a_dense_run_whose_rounds_shrink_with_devices(
    devices, low, high
):
    """Ten epochs of 60,000 images, 128 for each device in a round, 2 * 4 P bytes."""
    dense = 8 * CIFARNET * round(10 * 60_000 / (128 * devices)) / 2**30
    bound = volume("vardrop_devices", f"MNIST, {devices} devices")
    assert bound.value == pytest.approx((low + high) / 200 * dense)
    assert bound.tolerance == pytest.approx((high - low) / 200 * dense)


@pytest.mark.parametrize(
    ("recipe", "label", "values", "rounds"),
    [
        ("vardrop_random", "MNIST, dense", CIFARNET, 1172),
        ("vardrop_cifar10", "CIFAR-10, dense", RESNET18 + 513 * 10, 3418),
        ("vardrop_gtsrb_svhn", "GTSRB, dense", RESNET18 + 513 * 43, 2297),
    ],
)
def test_dense_rows_expect_the_volume_of_our_model_not_of_the_paper_s(
    recipe, label, values, rounds
):
    assert volume(recipe, label).value == pytest.approx(8 * values * rounds / 2**30)


def test_a_dense_run_sends_the_volume_of_the_formula_less_the_first_round_s_way_down(tmp_path):
    rounds, values = 3, 64 * 4 + 4 + 4 * 10 + 10
    settings = {
        "method": "vardrop", "preset": "paper", "model": "mlp(hidden=[4])", "clients": 2,
        "partition": "iid", "rounds": rounds, "warmup": rounds, "eval_every": rounds,
    }  # fmt: skip
    sent = METRICS["paper_gib_per_client"](find_or_run(settings, tmp_path)) * 2**30
    assert sent == pytest.approx(4 * values * (2 * rounds - 1))


@pytest.mark.parametrize(("model", "shape"), [("cifarnet", GREY28), ("resnet8", COLOUR32)])
def test_values_are_counted_alike_whether_made_or_not(model, shape):
    assert trainable(model, shape, 10) == sizes(model, shape, 10).trainable


def test_more_devices_have_as_many_epochs_in_the_small_tier_and_climb_as_far():
    recipe = find("vardrop_devices")
    rows = [recipe.settings(row, "small") for row in recipe.rows]
    assert [row["clients"] for row in rows] == [4, 8, 16]
    for name in ("rounds", "warmup", "ramp"):
        examples = {row[name] * row["clients"] * row["batch_size"] for row in rows}
        assert len(examples) == 1, name
    assert len({row["rounds"] * row["variance_lr"] for row in rows}) == 1
    (most,) = (
        x.bound.value
        for x in recipe.tiers["small"].expected["MNIST, 16 devices"]
        if x.metric == "paper_gib_per_client"
    )
    dense = 1500 * 128 / (16 * 16)  # rounds of as many epochs as 4 devices have with batches of 32
    assert most == pytest.approx(0.2 * 8 * CIFARNET * dense / 2**30)
