"""Communication totals of the papers, recomputed from their formulas and our models.

Papers   "Federated averaging as expectation-maximization", 2020 (FedSparse);
         SpaFL with its baselines (see `spafl_totals`);
         "Efficient federated learning via variational dropout", 2018 (VD);
         "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025 (FLoPS).
Symbols  T rounds, K clients in a round, d or P values of a dense model, rho target density.
Differs  where a printed figure is not what its formula gives, its note says why, or what is known.
"""

from collections.abc import Iterator
from decimal import Decimal

from fedsieve.recipes.figure import Calculated, Figure
from fedsieve.recipes.papers import spafl_totals
from fedsieve.recipes.papers.sizes import COLOUR32, GREY28, gib, sizes
from fedsieve.recipes.recipe import register


def figures() -> tuple[Figure, ...]:
    """All of them, paper by paper."""
    return (*_fedsparse(), *spafl_totals.figures(), *_vd(), *_flops())


def _fedsparse() -> Iterator[Figure]:
    for model, shape, outputs, rounds, data, printed in (
        ("lenet5_wide", COLOUR32, 10, 1000, "CIFAR-10", "65"),
        ("resnet20_gn", COLOUR32, 100, 6000, "CIFAR-100", "123"),
        ("lenet5_wide", GREY28, 62, 6000, "FEMNIST", "272"),
    ):
        d = sizes(model, shape, outputs).fedavg_values()
        yield Figure(
            label=f"FedAvg, {model}, {data}",
            formula=f"4 T 2K d, T = {rounds}, K = 10, d = {d:,}",
            unit="GiB",
            ours=gib(rounds * 2 * 10 * d),
            printed=printed,
            source="FedSparse, table of results",
        )


def _vd() -> Iterator[Figure]:
    """Per device, up and down; the models' sizes are known only as rounded in the paper."""
    for name, millions, examples, epochs, printed in (
        ("ResNet-18, CIFAR-10", "11.7", 50_000, 35, "297.5"),
        ("ResNet-18, GTSRB", "11.7", 39_209, 30, "200.3"),
        ("VGG-like, SVHN", "18.8", 73_257, 35, "702.2"),
        ("CifarNet, MNIST", "1.3", 60_000, 10, "11.5"),
        ("CifarNet, Fashion-MNIST", "1.3", 60_000, 30, "34.5"),
    ):
        iterations = Decimal(epochs * examples) / (4 * 128)
        size = Decimal(millions) * 10**6
        rounding = Decimal(50_000)  # half of the last printed digit
        yield Figure(
            label=f"VD baseline, {name}",
            formula=f"2 4 P iterations, P = {millions} M, {epochs} epochs of {examples:,} / 512",
            unit="GiB",
            ours=gib(2 * size * iterations),
            between=(
                gib(2 * (size - rounding) * iterations),
                gib(2 * (size + rounding) * iterations),
            ),
            printed=printed,
            source="VD, table of communication volumes",
            note="the paper gives P to three digits or fewer",
        )


def _flops() -> Iterator[Figure]:
    """Parameter counts as printed, and bytes of one message, for which there are only formulas."""
    source = "FLoPS, models and communication"
    for name, model, shape, outputs, printed in (
        ("regression, 1000 features", "linear", (1000,), 1, "1000"),
        ("MNIST, linear", "linear", GREY28, 10, "7840"),
        ("EMNIST, linear", "linear", GREY28, 62, "48608"),
        ("RCV1, linear", "linear", (47_236,), 34, "1606024"),
        ("MNIST, CNN", "lenet5", GREY28, 10, "44426"),
    ):
        values = sizes(model, shape, outputs).fedavg_values()
        yield Figure(
            label=f"P, {name}",
            formula=f"values in a message of fedavg, {model}",
            unit="values",
            ours=Decimal(values),
            printed=printed,
            source=source,
        )
    cnn = sizes("lenet5", GREY28, 10)
    p, kept = cnn.trainable, int(0.05 * cnn.trainable)
    own = "ours keeps 5 % of the weights and all biases: what fediter_ht sends"
    for name, formula, values, note in (
        ("FedAvg, CNN, a message", f"4 P, P = {p:,}", cnn.fedavg_values(), ""),
        ("FLoPS, CNN, a step", "4 2 P", 2 * p, ""),
        ("FLoPS-PA, CNN, a message", "4 2 rho P, rho = 0.05", 2 * kept, ""),
        ("FedIter-HT, CNN, a message", "4 rho P, rho = 0.05", kept, ""),
        ("FedIter-HT, CNN, as sent", "paper_bytes", cnn.fediter_ht_values(0.05), own),
    ):
        yield Figure(
            label=name,
            formula=formula,
            unit="bytes",
            ours=Decimal(4 * values),
            source=source,
            note=note,
        )


register(
    Calculated(
        name="communication_totals",
        title="Communication of FedAvg, SpaFL, LG-FedAvg, FedSpa, FedPM, VD and FLoPS by formula",
        source="FedSparse, SpaFL, VD and FLoPS papers",
        count=43,
        figures=figures,
    )
)
