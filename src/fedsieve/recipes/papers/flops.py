"""FLoPS, FLoPS-PA and their rivals on synthetic data with a planted sparse truth.

Paper    the synthetic tables of the FLoPS paper: 10,000 rows of 1000 features, 100 clients, 10 a
         round, 50 rounds of 20 steps in batches of 20, quantity skew Dirichlet(0.5), true density
         0.05 (specification flops, sections 8, 9 and 12).
Symbols  LR, LG, MC -> linear, logistic and 10-class regression   TDR -> true_discovery
Differs  sizes the paper leaves open are ours. A round of FLoPS is one step: 1000 of them. The shift
         of features (deviation 0.1) comes before labels are made. FedIter-HT and FedAvg run at the
         best rates found for them, not at the paper's.
"""

from typing import Any

from fedsieve.recipes.recipe import Recipe, Row, Tier, register
from fedsieve.recipes.verdict import AtLeast, Expected, Within

SHARED = {
    "partition": "feature_shift(0.1, quantity(0.5))",
    "model": "linear",
    "clients": 100,
    "cohort": 10,
    "batch_size": 20,
}
LOCAL = {"rounds": 50, "steps": 20, "eval_every": 10, "target_density": 0.05}
STEPWISE = {"rounds": 1000, "hold": 20, "eval_every": 200, "target_density": 0.05}
DATA = {
    "LR": "synthetic(task=values, snr={snr}, correlation={correlation})",
    "LG": "synthetic(task=binary, snr={snr}, correlation={correlation})",
    "MC": "synthetic(task=classes, snr={snr}, correlation={correlation})",
}
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "FLoPS": {
        "LR": {"method": "flops", "lr": 0.005, "gate_lr": 0.05},
        "LG": {"method": "flops", "lr": 0.2, "gate_lr": 0.2},
        "MC": {"method": "flops", "lr": 0.3, "gate_lr": 0.2},
    },
    "FLoPS-PA": {task: {"method": "flops_pa"} for task in DATA},
    "FedIter-HT": {
        "LR": {"method": "fediter_ht", "lr": 0.002},
        "LG": {"method": "fediter_ht", "lr": 0.2},
        "MC": {"method": "fediter_ht", "lr": 0.1},
    },
    "FedAvg + pruning": {
        "LR": {"method": "fedavg_prune", "lr": 0.0008},
        "LG": {"method": "fedavg_prune", "lr": 0.2},
        "MC": {"method": "fedavg_prune", "lr": 0.3},
    },
}
EXTRA = {"fediter_ht": {"start": "zero", "optimiser": "sgd"}}
REACH = {  # (true discovery rate, score): at least the paper's table
    ("FLoPS", "LR"): (0.98, 0.91),
    ("FLoPS", "LG"): (0.94, 0.90),
    ("FLoPS", "MC"): (0.97, 0.68),
    ("FLoPS-PA", "LR"): (0.98, 0.91),
}
REGIMES = {
    "SNR 20, c 0.2": (20, 0.2, 0.5),
    "SNR 20, c 0.7": (20, 0.7, 0.5),
    "SNR 3, c 0.2": (3, 0.2, 0.5),
    "SNR 3, c 0.7": (3, 0.7, 0.5),
    "IID": (20, 0.2, 1000),
}
EXACT = Expected("density", Within(0.05, 1e-12), "floor(0.05 P) / P")


def settings(method: str, task: str, regime: str = "SNR 20, c 0.2") -> dict[str, Any]:
    """Keywords of a run."""
    snr, correlation, alpha = REGIMES[regime]
    chosen = METHODS[method][task]
    return {
        **SHARED,
        **(STEPWISE if chosen["method"] == "flops" else LOCAL),
        "partition": f"feature_shift(0.1, quantity({alpha}))",
        "dataset": DATA[task].format(snr=snr, correlation=correlation),
        **EXTRA.get(chosen["method"], {}),
        **chosen,
    }


def expected(method: str, task: str) -> tuple[Expected, ...]:
    if (method, task) not in REACH:
        return (EXACT,)
    discovery, score = REACH[method, task]
    return (
        EXACT,
        Expected("true_discovery", AtLeast(discovery), "the paper's table"),
        Expected("global_accuracy", AtLeast(score), "the paper's table"),
    )


SHOWN = ("true_discovery", "truth_recall", "global_accuracy", "loss", "density", "true_mb")
SMALL_DATA = "synthetic(task=values, rows=2000, test_rows=500, features=200)"
SMOKE = {
    "dataset": SMALL_DATA,
    "partition": "quantity(0.5)",
    "clients": 20,
    "rounds": 15,
    "eval_every": 15,
}
FOUND = (
    EXACT,
    Expected("true_discovery", AtLeast(1), "specification flops, section 14"),
    Expected("global_accuracy", AtLeast(0.9), "noise alone leaves 0.95"),
)

recipe = Recipe(
    name="flops_synthetic",
    title="FLoPS on synthetic linear, logistic and 10-class regression",
    source="FLoPS paper, synthetic tables (SNR 20, correlation 0.2, non-IID)",
    rows=tuple(
        Row(
            label=f"{task}, {method}",
            settings=settings(method, task),
            expected=expected(method, task),
        )
        for task in DATA
        for method in METHODS
    ),
    tiers={"full": Tier(settings={})},
    shown=SHOWN,
)
smoke = Recipe(
    name="flops_smoke",
    title="FLoPS and FLoPS-PA find a planted support of 10 in 200 weights",
    source="specification flops, section 14",
    rows=(
        Row(
            label="FLoPS",
            settings={
                **settings("FLoPS", "LR"),
                **SMOKE,
                "rounds": 200,
                "eval_every": 200,
                "scale_from": 5,
                "scale_rate": 0.9,
                "lr": 0.02,
            },
            expected=FOUND,
        ),
        Row(label="FLoPS-PA", settings={**settings("FLoPS-PA", "LR"), **SMOKE}, expected=FOUND),
    ),
    tiers={"smoke": Tier(settings={}), "full": Tier(settings={})},
    shown=SHOWN,
)
regimes = Recipe(
    name="flops_regimes",
    title="FLoPS in four regimes of noise and correlation, and with equal clients",
    source="FLoPS paper, appendix",
    rows=tuple(
        Row(
            label=f"{task}, {regime}, {method}",
            settings=settings(method, task, regime),
            expected=(EXACT,),
        )
        for task in DATA
        for regime in REGIMES
        for method in METHODS
    ),
    tiers={"full": Tier(settings={})},
    shown=SHOWN,
)
register(recipe)
register(smoke)
register(regimes)
