"""Neural matching over communication rounds, two hidden layers of 100.

Paper    Xiao & Cheng, "Probabilistic Federated Learning of Neural Networks Incorporated with Global
         Posterior Information", figure 4: 15 clients, 15 rounds with equal parts, 30 with
         Dirichlet(0.4); local work as in the published program of PFNM.
Symbols  S -> clients   epsilon -> eps
Differs  the figure prints no numbers. All hyper-parameters are 1 and eps is 0.1, fixed beforehand;
         the paper takes the best of about ten.
"""

from typing import Any

from fedsieve.recipes.recipe import AtLeast, Expected, Recipe, Row, Tier, register

LOCAL: dict[str, Any] = {
    "model": "mlp(hidden=[100, 100])",
    "input_scale": "unit",
    "clients": 15,
    "cohort": 15,
    "batch_size": 32,
    "epochs": 5,
    "optimiser": "adam(amsgrad=true)",
    "schedule": "exponential(0.99)",
}
METHODS: dict[str, dict[str, Any]] = {
    "PFNM": {"method": "pfnm", "first_epochs": 10},
    "GPI-FNM": {"method": "gpi_fnm", "first_epochs": 10, "eps": 0.1},
    "FedAvg": {"method": "fedavg"},
}
PARTITIONS = {"homogeneous": ("iid", 15), "heterogeneous": ("capped_dirichlet(0.4)", 30)}
SMOKE_FLOOR = Expected("global_accuracy", AtLeast(0.6), "a floor of ours: chance is 0.1")
SMOKE: dict[str, Any] = {
    "dataset": "digits",
    "model": "mlp(hidden=[30, 30])",
    "clients": 5,
    "cohort": 5,
    "rounds": 3,
    "lr": 0.01,
}


def _rows(dataset: str, lr: float, reg: float) -> tuple[Row, ...]:
    return tuple(
        Row(
            label=f"{method}, {name}",
            settings={
                **LOCAL,
                **options,
                **({} if method == "FedAvg" else {"reg": reg}),
                "dataset": dataset,
                "lr": lr,
                "partition": partition,
                "rounds": rounds,
            },
        )
        for name, (partition, rounds) in PARTITIONS.items()
        for method, options in METHODS.items()
    )


for _dataset, _title, _lr, _reg in (
    ("mnist", "MNIST", 0.01, 1e-6),
    ("cifar10", "CIFAR-10", 0.001, 1e-5),
):
    register(
        Recipe(
            name=f"matching_rounds_{_dataset}",
            title=f"PFNM, GPI-FNM and FedAvg over rounds on {_title}",
            source="GPI-FNM paper, figure 4",
            rows=_rows(_dataset, _lr, _reg),
            tiers={
                "smoke": Tier(
                    settings=SMOKE,
                    expected={row.label: (SMOKE_FLOOR,) for row in _rows(_dataset, _lr, _reg)},
                ),
                "small": Tier(settings={"rounds": 5}),
                "full": Tier(settings={}),
            },
            shown=("global_accuracy", "best_global_accuracy"),
        )
    )
