"""Table 1 of the FedSparse paper: FedAvg, FedDrop and FedSparse at three costs of a gate.

Paper    "Federated averaging as expectation-maximization", 2020 (specification fedsparse,
         sections 5 to 7): ten clients a round, one epoch, every method with Adam on the server.
         Accuracies are means over the last ten evaluations; local ones are of each client's last
         upload.
Symbols  lambda_0 -> gate_cost: 5e-7 low, 5e-6 mid, 5e-5 high
Differs  Femnist is not at hand: MNIST by writer and EMNIST letters stand in for it, so its figures
         are not expected of them. CIFAR-100 is dealt by a balanced Dirichlet draw, not by Pachinko
         allocation, and without FedDrop: GroupNorm ties the units of its network together. The
         paper's rate of thresholds is 1e-3 at eight (CIFAR-10) and five steps, here 1.1e-3 and
         1.4e-3. In tier `small` of CIFAR-10 the data is Fashion-MNIST, in shards of unequal size
         (dirichlet(1.0), not balanced; so in `smoke`), and the rate 1.5e-3: at 1e-3 the
         reference run of specification fedsparse, section 8, has a sparsity of 38 % after 30 rounds
         of the high cost.
"""

from collections.abc import Iterable

from fedsieve.recipes.recipe import ON_DIGITS, Recipe, Row, Settings, Tier, register
from fedsieve.recipes.verdict import AtLeast, Expected, Within

SHARED = {
    "cohort": 10,
    "epochs": 1,
    "eval_every": 10,
    "lr": 0.05,
    "weighting": "uniform",
    "personal": True,
}
ADAM = {"server_optimiser": "adam", "server_lr": 1e-3}
COSTS = {"low": 5e-7, "mid": 5e-6, "high": 5e-5}
SPARSE = tuple(f"FedSparse {name}" for name in COSTS)
SHOWN = ("late_global_accuracy", "late_local_accuracy", "sparsity", "true_mb", "paper_gib")
PLAIN_LENET = "lenet5_wide(conv_dropout=0.0, fc_dropout=0.0)"
SMOKE: Settings = {**ON_DIGITS, "partition": "dirichlet(1.0)", "eval_every": 1}
VALUES = 18_710  # of conv_small


def printed(figures: str) -> tuple[Expected, ...]:
    """Global and local accuracy, GiB and sparsity as the table prints them."""
    names = ("late_global_accuracy", "late_local_accuracy", "paper_gib", "sparsity")
    scales, tolerances = (100, 100, 1, 100), (0.02, 0.02, 2.0, 0.05)
    return tuple(
        Expected(name, Within(float(text) / scale, tolerance), "Table 1")
        for name, scale, tolerance, text in zip(
            names, scales, tolerances, figures.split("/"), strict=False
        )
    )


def by_formula(rounds: int, values: int) -> Expected:
    """Both directions, 4 bytes a value: 4 T 2K d."""
    total = 4 * rounds * 2 * 10 * values / 2**30
    return Expected("paper_gib", Within(total, total * 1e-9), f"4 T 2K d, d = {values:,}")


def rows(
    shared: Settings, figures: Iterable[str], drop: Settings | None, sparse: Settings
) -> tuple[Row, ...]:
    """The table's rows; FedDrop only with settings of its own."""
    printed_by = dict(zip(("FedAvg", "FedDrop", *SPARSE), figures, strict=False))

    def row(label: str, **settings: object) -> Row:
        expected = printed(printed_by[label]) if label in printed_by else ()
        return Row(label=label, settings={**SHARED, **shared, **settings}, expected=expected)

    dropped = [] if drop is None else [row("FedDrop", method="feddrop", **ADAM, **drop)]
    return (
        row("FedAvg", method="fedopt", **ADAM),
        *dropped,
        *(
            row(f"FedSparse {name}", method="fedsparse", gate_cost=cost, **ADAM, **sparse)
            for name, cost in COSTS.items()
        ),
    )


CIFAR10 = {
    "dataset": "cifar10",
    "model": "lenet5_wide",
    "partition": "dirichlet(1.0, balanced=True)",
    "clients": 100,
    "rounds": 1000,
    "batch_size": 64,
}
cifar10 = Recipe(
    name="fedsparse_cifar10",
    title="FedAvg, FedDrop and FedSparse on CIFAR-10 (tier small: Fashion-MNIST)",
    source="FedSparse paper, Table 1, first block",
    rows=rows(
        CIFAR10,
        (
            "69.97/86.71/65.5",
            "71.54/86.86/35",
            "70.30/87.65/52/20.1",
            "70.30/87.54/36/45.7",
            "68.46/87.17/26/62.4",
        ),
        {"model": PLAIN_LENET, "conv_drop": 0.1, "fc_drop": 0.5},
        {},
    ),
    tiers={
        "smoke": Tier(settings=SMOKE, expected={"FedAvg": (by_formula(10, VALUES),)}),
        "small": Tier(
            settings={
                "dataset": "fashion_mnist",
                "partition": "dirichlet(1.0)",
                "rounds": 100,
                "eval_every": 5,
            },
            by_row={label: {"threshold_lr": 1.5e-3} for label in SPARSE},
            expected={
                "FedAvg": (by_formula(100, 582_026),),
                "FedSparse high": (Expected("sparsity", AtLeast(0.5), "a bound of ours"),),
            },
        ),
        "full": Tier(settings={}),
    },
    shown=SHOWN,
)

CIFAR100 = {
    "dataset": "cifar100",
    "model": "resnet20_gn",
    "partition": "dirichlet(1.0, balanced=True)",
    "clients": 500,
    "rounds": 6000,
    "batch_size": 20,
}
cifar100 = Recipe(
    name="fedsparse_cifar100",
    title="FedAvg and FedSparse on CIFAR-100 (tier small: 100 images a class)",
    source="FedSparse paper, Table 1, second block",
    rows=rows(
        CIFAR100,
        (
            "41.11/61.61/123.2",
            "37.65/58.02/112",
            "40.69/61.31/113/2.2",
            "31.94/54.83/59/51.0",
            "24.68/49.58/45/62.9",
        ),
        None,
        {"ungated": ["fc.weight"]},
    ),
    tiers={
        "small": Tier(
            settings={"dataset": "cifar100_subset", "clients": 100, "rounds": 50, "eval_every": 5}
        ),
        "full": Tier(settings={}),
    },
    shown=SHOWN,
)

WRITERS = {
    "dataset": "qmnist_writers",
    "model": "lenet5_wide",
    "partition": "natural",
    "rounds": 6000,
    "batch_size": 20,
}
LETTERS = {
    **WRITERS,
    "dataset": "emnist_letters",
    "partition": "dirichlet(1.0, balanced=True)",
    "clients": 500,
}
FEMNIST_DROP = {"conv_drop": 0.2, "fc_drop": 0.4}
STAND_INS = {
    "writers": (WRITERS, "MNIST by writer"),
    "letters": (LETTERS, "EMNIST letters"),
}
for _name, (_settings, _data) in STAND_INS.items():
    register(
        Recipe(
            name=f"fedsparse_{_name}",
            title=f"FedAvg, FedDrop and FedSparse on {_data}, which stands in for Femnist",
            source="FedSparse paper, Table 1, third block; other data, so none of its figures",
            rows=rows(_settings, (), FEMNIST_DROP, {}),
            tiers={
                "small": Tier(settings={"rounds": 100, "eval_every": 5}),
                "full": Tier(settings={}),
            },
            shown=SHOWN,
        )
    )
register(cifar10)
register(cifar100)
