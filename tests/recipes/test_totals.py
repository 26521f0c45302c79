"""Printed totals follow from the formulas, or a note says why they do not."""

from decimal import Decimal

import pytest

from fedsieve.recipes.figure import Figure, judge
from fedsieve.recipes.papers import communication_totals, dense_flops
from fedsieve.recipes.recipe import find


@pytest.fixture(scope="module")
def figures():
    return {f.label: f for f in communication_totals.figures()}


UNEXPLAINED = {
    "LG-FedAvg, lstm",
    "FedSpa, lenet5_caffe",
    "FedSpa, cnn7",
    "FedSpa, resnet8",
    "FedPM, lenet5_caffe",
    "FedPM, resnet8",
}


def test_no_figure_differs_without_an_explanation_but_those_known_to_have_none(figures):
    found = {label: judge(f).agreement for label, f in figures.items()}
    assert {label for label, word in found.items() if word == "unexplained"} == UNEXPLAINED
    assert all(f.note for label, f in figures.items() if found[label] in {"differs", "unexplained"})
    flops = [f.label for f in dense_flops.figures() if judge(f).agreement == "unexplained"]
    assert flops == ["FedAvg, resnet8"]


def test_labels_are_unique_and_counts_as_stated(figures):
    assert len(figures) == find("communication_totals").count
    assert len(dense_flops.figures()) == find("dense_flops").count


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
    assert figure.ours == Decimal(total) / (2**30 if unit == "GiB" else 10**9)
    assert float(figure.printed) == printed
    assert judge(figure).agreement == "exact"


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
    assert float(figure.ours) == pytest.approx(8 * millions * 1e6 * images / 512 / 2**30)
    assert float(figure.ours) == pytest.approx(printed, rel=0.05 / millions)
    assert float(figure.printed) == printed


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
        assert (figures[label].ours, figures[label].printed) == (ours, printed)
        assert judge(figures[label]).agreement == "differs"


def test_every_exact_figure_is_within_one_unit_of_its_last_printed_digit(figures):
    exact = [f for f in figures.values() if judge(f).agreement == "exact"]
    assert len(exact) == 23
    for figure in exact:
        printed = Decimal(figure.printed)
        assert abs(figure.ours - printed) < Decimal(1).scaleb(printed.as_tuple().exponent)


def test_messages_of_the_cnn_are_those_of_the_formulas(figures):
    p = 156 + 2416 + 30840 + 10164 + 850
    assert figures["FedAvg, CNN, a message"].ours == 4 * p
    assert figures["FLoPS, CNN, a step"].ours == 8 * p
    assert figures["FLoPS-PA, CNN, a message"].ours == 8 * (5 * p // 100)
    assert figures["FedIter-HT, CNN, a message"].ours == 4 * (5 * p // 100)
    biases = 6 + 16 + 120 + 84 + 10
    assert figures["FedIter-HT, CNN, as sent"].ours == 4 * (5 * (p - biases) // 100 + biases)


def made(**values):
    base = {"label": "x", "formula": "", "unit": "Gbit", "source": ""}
    return Figure(**base | {n: Decimal(v) if n == "ours" else v for n, v in values.items()})


@pytest.mark.parametrize(
    ("figure", "agreement", "words"),
    [
        (made(ours="2.3456", printed="2.346"), "exact", "exact"),
        (made(ours="2.3456", printed="2.345"), "exact", "cut off"),
        (made(ours="2.3456", printed="2.344", note="a slip"), "differs", "-0.1 %; a slip"),
        (made(ours="2.3456", printed="2.5"), "unexplained", "UNEXPLAINED"),
        (
            made(ours="2", printed="3", note="odd", is_explained=False),
            "unexplained",
            "+50.0 %; odd; UNEXPLAINED",
        ),
        (made(ours="2.3456"), "not printed", "formula"),
        (
            made(ours="2", printed="2.4", between=(Decimal(1), Decimal(3))),
            "consistent",
            "consistent",
        ),
        (made(ours="2", printed="4", between=(Decimal(1), Decimal(3))), "unexplained", "+100.0 %"),
        (made(ours="619110000000", printed="6.19e11"), "exact", "exact"),
    ],
)
def test_printed_digits_decide(figure, agreement, words):
    verdict = judge(figure)
    assert verdict.agreement == agreement
    assert words in verdict.text


def test_dense_flops_of_lenet_are_three_passes_over_the_mean_client():
    found = {f.label: f for f in dense_flops.figures()}
    macs = 576 * 500 + 64 * 25_000 + 400_000 + 5_000
    per_client = 3 * macs * 3 * 600 * 500 // 10
    assert found["FedAvg, lenet5_caffe"].ours == per_client == 619_110_000_000
    assert judge(found["FedAvg, lenet5_caffe"]).agreement == "consistent"
