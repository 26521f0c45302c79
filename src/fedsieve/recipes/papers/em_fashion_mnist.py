"""FedAvg, FedProx and FedOpt on Fashion-MNIST with label skew.

Paper    the setting of the SpaFL comparison: 100 clients, 10 a round, Dirichlet(0.2), three epochs
         in batches of 64, LeNet-5-Caffe, momentum 0.9, clients count equally.
Symbols  T -> rounds   K -> cohort   N -> clients   d values of the model
Differs  the paper feeds pixels 0..255 with rate 0.001, here inputs are standardised and the rate is
         0.01, so accuracies have no printed counterpart. FedProx and FedOpt are not in its tables.
"""

from fedsieve.recipes.recipe import ON_DIGITS, Recipe, Row, Tier, register
from fedsieve.recipes.verdict import AtLeast, Expected, Within

SHARED = {
    "dataset": "fashion_mnist",
    "model": "lenet5_caffe",
    "partition": "dirichlet(0.2)",
    "clients": 100,
    "cohort": 10,
    "rounds": 500,
    "epochs": 3,
    "batch_size": 64,
    "eval_every": 10,
    "lr": 0.01,
    "optimiser": "sgd(momentum=0.9)",
    "weighting": "uniform",
}
LABELS = ("FedAvg", "FedProx", "FedOpt")
FLOOR = Expected(
    "global_accuracy",
    AtLeast(0.75),
    "a floor of ours: chance is 0.1, a sound run comes to about 0.9",
)


def formula_gbit(rounds: int, cohort: int, values: int) -> Expected:
    """Both directions, 32 bits a value: 32 T 2K d."""
    total = 32 * rounds * 2 * cohort * values / 1e9
    return Expected("paper_gbit", Within(total, total * 1e-9), f"32 T 2K d, d = {values:,}")


SMOKE = (FLOOR, formula_gbit(10, 10, 18_710))
SMALL = (formula_gbit(40, 10, 430_500),)

recipe = Recipe(
    name="em_fashion_mnist",
    title="FedAvg, FedProx and FedOpt on Fashion-MNIST, Dirichlet(0.2)",
    source="SpaFL paper, setting of the comparison",
    rows=(
        Row(
            label="FedAvg",
            settings={**SHARED, "method": "fedavg"},
            expected=(
                Expected(
                    "paper_gbit",
                    Within(137.76, 0.005),
                    "SpaFL's formula 32 T 2K d; its table prints 133.8",
                ),
                Expected("macs_per_client", Within(6.2044e11, 0.03 * 6.2044e11), "SpaFL's table"),
            ),
        ),
        Row(
            label="FedProx",
            settings={**SHARED, "method": "fedprox", "proximal": 0.01},
        ),
        Row(
            label="FedOpt",
            settings={
                **SHARED,
                "method": "fedopt",
                "server_optimiser": "adam(eps=0.001)",
                "server_lr": 0.01,
            },
        ),
    ),
    tiers={
        "smoke": Tier(
            settings={**ON_DIGITS, "lr": 0.03},
            expected=dict.fromkeys(LABELS, SMOKE),
        ),
        "small": Tier(settings={"rounds": 40}, expected=dict.fromkeys(LABELS, SMALL)),
        "full": Tier(settings={}),
    },
    shown=("global_accuracy", "local_accuracy"),
)
register(recipe)
