"""Attacks: a fifth of the clients lie in seven ways, against eight rules of aggregation.

Paper    none; the attacks and rules are those of the field: Yin et al., ICML 2018 (median, trimmed
         mean), Pillutla et al., 2022 (geometric median), Blanchard et al., NeurIPS 2017 (Krum),
         Baruch et al., NeurIPS 2019 (a shift inside the spread). `agreement` is our own.
Symbols  attackers -> 0.2 of all clients; a cohort of 10 of 20, or of 20 of 40, never has a majority
Differs  methods run with their defaults. A row is expected to stay within 3 points of the method's
         own mean without attack (`clean`, seed 0), with the rule chosen for the method, and within
         1 point where nobody lies.
"""

from typing import Any

from fedsieve.recipes.recipe import Recipe, Row, Tier, register
from fedsieve.recipes.verdict import AtLeast, Expected

ATTACKS: dict[str, str | None] = {
    "no attack": None,
    "sign flip": "sign_flip",
    "x 1000": "scale(1000)",
    "Gaussian": "gaussian(1)",
    "label flip": "label_flip",
    "count lie": "count_lie",
    "replay": "replay",
    "shift": "shift(1)",
}
RULES = (
    "mean",
    "trimmed_mean(0.2)",
    "trimmed_mean(0.4)",
    "median",
    "geometric_median",
    "krum(0.2)",
    "norm_clipped(1)",
    "agreement",
)
METHODS = ("fedavg", "fediter_ht", "flops_pa", "fedsparse", "spafl", "vardrop")
CLIPPED = "clip_update median_norm(3)"  # the mean of updates cut to three times the median norm
BEST = dict.fromkeys(METHODS, "agreement") | {"spafl": CLIPPED}
CLEAN = {  # accuracy by the mean without attack on digits, seed 0
    "fedavg": 0.975,
    "fediter_ht": 0.986,
    "flops_pa": 0.986,
    "fedsparse": 0.966,
    "spafl": 0.910,
    "vardrop": 0.977,
}


def label(method: str, rule: str, attack: str) -> str:
    """The name of a row."""
    return f"{method}, {rule}, {attack}"


def _row(method: str, rule: str, attack: str) -> Row:
    settings: dict[str, Any] = {
        "method": method,
        "preset": "default",
        "attack": ATTACKS[attack],
        "eval_every": 30,
    }
    name, _, clip = rule.partition(" ")
    settings |= {name: clip} if clip else {"aggregation": rule}
    return Row(label=label(method, rule, attack), settings=settings)


def _bound(method: str, attack: str) -> tuple[Expected, ...]:
    lost = 0.01 if attack == "no attack" else 0.03
    metric = "local_accuracy" if method == "spafl" else "global_accuracy"
    return (Expected(metric, AtLeast(CLEAN[method] - lost), f"{CLEAN[method]:.3f} - {lost}"),)


recipe = Recipe(
    name="attacks",
    title="A fifth of the clients lie: methods, attacks and rules of aggregation on digits",
    source="rules and attacks of the literature, on the embedded digits",
    rows=tuple(
        _row(m, rule, a)
        for rule in (*RULES, CLIPPED)
        for m in (METHODS if rule in RULES else ("spafl",))
        for a in ATTACKS
    ),
    tiers={
        "smoke": Tier(
            settings={"dataset": "digits"},
            expected={label(m, BEST[m], a): _bound(m, a) for m in METHODS for a in ATTACKS},
        )
    },
    shown=("global_accuracy", "local_accuracy"),
)
register(recipe)

fashion = Recipe(
    name="attacks_fashion_mnist",
    title="A fifth of 40 clients lie: each method with its best rule on Fashion-MNIST",
    source="rules and attacks of the literature",
    rows=tuple(
        _row(m, rule, a)
        for m in METHODS
        for rule in ("mean", "geometric_median" if m == "spafl" else BEST[m])
        for a in ATTACKS
    ),
    tiers={
        "small": Tier(
            settings={
                "dataset": "fashion_mnist",
                "clients": 40,
                "cohort": 20,
                "steps": 20,
                "rounds": 30,
                "eval_every": 30,
            }
        )
    },
    shown=("global_accuracy", "local_accuracy"),
)
register(fashion)
