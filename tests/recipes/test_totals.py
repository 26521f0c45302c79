"""Printed totals follow from the formulas, or a note says why they do not."""

from decimal import Decimal

import pytest

from fedsieve.recipes.papers import totals
from fedsieve.recipes.recipe import find
from fedsieve.recipes.runner import reproduce
from fedsieve.recipes.verdict import Expected, Measured, Printed, judge


@pytest.fixture(scope="module")
def figures():
    return {f.label: f for f in totals.communication()}


def verdict(figure):
    (expected,) = figure.expected or (None,)
    return judge(Measured(float(figure.value), None, 1), expected)


UNEXPLAINED = {
    "LG-FedAvg, lstm",
    "FedSpa, lenet5_caffe",
    "FedSpa, cnn7",
    "FedSpa, resnet8",
    "FedPM, lenet5_caffe",
    "FedPM, resnet8",
}


def test_no_figure_differs_without_an_explanation_but_those_known_to_have_none(figures):
    found = {label: verdict(f).kind for label, f in figures.items()}
    assert {label for label, word in found.items() if word == "unexplained"} == UNEXPLAINED
    assert all(
        f.printed.note for label, f in figures.items() if found[label] in {"differs", "unexplained"}
    )
    flops = [f.label for f in totals.dense_flops() if verdict(f).kind == "unexplained"]
    assert flops == ["FedAvg, resnet8"]


def test_every_figure_is_a_line_of_the_table_with_its_formula(figures, tmp_path):
    assert len(figures) == 43, "labels are unique"
    outcome = reproduce(find("communication_totals"), "full", tmp_path, seeds=2)
    assert {line.row: line.ours.mean for line in outcome.lines} == {
        label: float(figure.value) for label, figure in figures.items()
    }
    assert all(line.formula for line in outcome.lines)
    assert {line.ours.n for line in outcome.lines} == {1}, "a formula has no seeds"
    assert not outcome.costs
    assert not list(tmp_path.iterdir())


BATCH_NORM = 2 * (64 + 64 + 128 + 128 + 128 + 128)
CNN7 = 25 * (3 * 64 + 64 * 64 + 64 * 128 + 128 * 128) + 512 * 128 + 128 * 128 + 128 * 10
LENET = 25 * 20 + 25 * 20 * 50 + 800 * 500 + 500 * 10
LSTM = 4 * 128 * (28 + 128) + 4 * 128 * (128 + 128)
BLOCKS = ((64, 64, 64), (64, 128, 128), (128, 256, 256), (256, 512, 512))
RESNET18 = 27 * 64 + sum(9 * (i * o + 3 * o * o) + (i * o if i != o else 0) for i, o, _ in BLOCKS)
RESNET8_ROWS = 16 + 2 * 16 + 3 * 32 + 3 * 64 + 100
WIDE = 25 * 3 * 32 + 32 + 25 * 32 * 64 + 64 + 1600 * 512 + 512 + 5120 + 10


@pytest.mark.parametrize(
    ("label", "total", "unit", "printed"),
    [
        ("FedAvg, lenet5_wide, CIFAR-10", 1000 * 20 * 4 * WIDE, "GiB", 65),
        (
            "FedAvg, cnn7 with statistics and counters",
            500 * 20 * 32 * (CNN7 + 2 * BATCH_NORM + 6),
            "Gbit",
            258.36,
        ),
        ("FedAvg, lstm without its last layer", 299 * 20 * 32 * LSTM, "Gbit", 40.366),
        ("FedAvg, resnet18, convolutions", 500 * 20 * 32 * RESNET18, "Gbit", 3570.95),
        ("SpaFL, lenet5_caffe", 500 * 110 * 32 * (20 + 50 + 500 + 10), "Gbit", 1.0208),
        ("SpaFL, lenet5_caffe, sent to K", 500 * 20 * 32 * 580, "Gbit", 0.1856),
        ("SpaFL, resnet8", 500 * 110 * 32 * RESNET8_ROWS, "Gbit", 0.7674),
        ("SpaFL, lstm", 299 * 110 * 32 * 4 * 512, "Gbit", 2.1554),
        ("SpaFL, resnet18 of half width, as released", 1000 * 110 * 32 * 2400, "Gbit", 8.448),
        ("LG-FedAvg, lenet5_caffe, last layer", 500 * 20 * 32 * 500 * 10, "Gbit", 1.6),
        ("LG-FedAvg, cnn7, last two", 500 * 20 * 32 * 128 * (128 + 10), "Gbit", 5.6524),
        (
            "LG-FedAvg, resnet8, last three tensors",
            500 * 20 * 32 * (32 * 64 + 64 * 100 + 100),
            "Gbit",
            2.7353,
        ),
    ],
)
def test_formulas_agree_with_arithmetic_by_hand_and_with_print(
    figures, label, total, unit, printed
):
    figure = figures[label]
    assert figure.unit == unit
    assert figure.value == Decimal(total) / (2**30 if unit == "GiB" else 10**9)
    assert figure.printed.value == printed
    assert verdict(figure).kind == "exact"


@pytest.mark.parametrize(
    ("name", "millions", "images", "printed"),
    [
        ("ResNet-18, CIFAR-10", 11.7, 35 * 50_000, 297.5),
        ("ResNet-18, GTSRB", 11.7, 30 * 39_209, 200.3),
        ("VGG-like, SVHN", 18.8, 35 * 73_257, 702.2),
        ("CifarNet, MNIST", 1.3, 10 * 60_000, 11.5),
        ("CifarNet, Fashion-MNIST", 1.3, 30 * 60_000, 34.5),
    ],
)
def test_volumes_of_variational_dropout_follow_from_its_formula(
    figures, name, millions, images, printed
):
    """2 * 4 P bytes a step of 4 x 128 images, as exactly as P is printed."""
    figure = figures[f"VD baseline, {name}"]
    assert float(figure.value) == pytest.approx(8 * millions * 1e6 * images / 512 / 2**30)
    assert float(figure.value) == pytest.approx(printed, rel=0.05 / millions)
    assert figure.printed.value == printed


def test_known_misprints_are_shown_as_differences(figures):
    misprints = {
        "FedAvg, lenet5_caffe, Fashion-MNIST": (Decimal("137.76"), "133.8"),
        "SpaFL, cnn7, rows and BatchNorm of convolutions, sent to K": (
            Decimal("0.45376"),
            "0.4357",
        ),
    }
    assert 500 * 20 * 32 * LENET == 137_760_000_000
    for label, (ours, printed) in misprints.items():
        assert (figures[label].value, figures[label].printed.digits) == (ours, printed)
        assert verdict(figures[label]).kind == "differs"


def test_every_exact_figure_is_within_one_unit_of_its_last_printed_digit(figures):
    exact = [f for f in figures.values() if verdict(f).kind == "exact"]
    assert len(exact) == 23
    for figure in exact:
        printed = Decimal(figure.printed.digits)
        assert abs(figure.value - printed) < Decimal(1).scaleb(printed.as_tuple().exponent)


def test_messages_of_the_cnn_are_those_of_the_formulas(figures):
    p = 156 + 2416 + 30840 + 10164 + 850
    assert figures["FedAvg, CNN, a message"].value == 4 * p
    assert figures["FLoPS, CNN, a step"].value == 8 * p
    assert figures["FLoPS-PA, CNN, a message"].value == 8 * (5 * p // 100)
    assert figures["FedIter-HT, CNN, a message"].value == 4 * (5 * p // 100)
    biases = 6 + 16 + 120 + 84 + 10
    assert figures["FedIter-HT, CNN, as sent"].value == 4 * (5 * (p - biases) // 100 + biases)


@pytest.mark.parametrize(
    ("ours", "printed", "kind", "words"),
    [
        (2.3456, Printed("2.346"), "exact", "exact"),
        (2.3456, Printed("2.345"), "exact", "cut off"),
        (2.3456, Printed("2.344", note="a slip"), "differs", "-0.1 %; a slip"),
        (2.3456, Printed("2.5"), "unexplained", "UNEXPLAINED"),
        (
            2.0,
            Printed("3", note="odd", is_explained=False),
            "unexplained",
            "+50.0 %; odd; UNEXPLAINED",
        ),
        (2.0, Printed("2.4", (Decimal(1), Decimal(3))), "consistent", "consistent"),
        (2.0, Printed("4", (Decimal(1), Decimal(3))), "unexplained", "+100.0 %"),
        (619110000000.0, Printed("6.19e11"), "exact", "exact"),
    ],
)
def test_printed_digits_decide(ours, printed, kind, words):
    found = judge(Measured(ours, None, 1), Expected("Gbit", printed, ""))
    assert found.kind == kind
    assert words in found.text


def test_dense_flops_of_lenet_are_three_passes_over_the_mean_client():
    found = {f.label: f for f in totals.dense_flops()}
    macs = 576 * 500 + 64 * 25_000 + 400_000 + 5_000
    per_client = 3 * macs * 3 * 600 * 500 // 10
    assert found["FedAvg, lenet5_caffe"].value == per_client == 619_110_000_000
    assert verdict(found["FedAvg, lenet5_caffe"]).kind == "consistent"
