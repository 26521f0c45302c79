"""The recipe of lying clients: every method, attack and rule, and what is expected of the best."""

import pytest

from fedsieve.jobs.config import make
from fedsieve.recipes.papers import attacks
from fedsieve.recipes.recipe import Recipe, Tier
from fedsieve.recipes.runner import reproduce


def test_every_method_meets_every_attack_with_every_rule():
    labels = [row.label for row in attacks.recipe.rows]
    assert len(set(labels)) == 6 * 8 * 8 + 8  # SpaFL's own setting beside the rules
    for row in attacks.recipe.rows:
        config = make(attacks.recipe.settings(row, "smoke"))
        clipped = config.clip_update and f"clip_update {config.clip_update}"
        rule = clipped or config.aggregation
        assert attacks.label(config.method, rule, _name(config.attack)) == row.label
        assert config.options == {}, "methods have their defaults"


def _name(attack):
    return next(name for name, text in attacks.ATTACKS.items() if text == attack)


@pytest.mark.parametrize("method", attacks.METHODS)
def test_the_best_rule_is_judged_by_the_mean_without_attack(method):
    for attack in attacks.ATTACKS:
        label = attacks.label(method, attacks.BEST[method], attack)
        (expected,) = attacks.recipe.tiers["smoke"].expected[label]
        lost = attacks.CLEAN[method] - expected.bound.value
        assert lost == pytest.approx(0.01 if attack == "no attack" else 0.03)
        assert expected.metric == ("local_accuracy" if method == "spafl" else "global_accuracy")


def test_a_row_runs(tmp_path):
    row = next(r for r in attacks.recipe.rows if r.label == "fedavg, agreement, sign flip")
    few = {"rounds": 2, "model": "mlp(hidden=[12])", "clients": 5, "cohort": 5}
    recipe = Recipe(
        name="few", title="", source="", rows=(row,), tiers={"smoke": Tier(settings=few)}
    )
    outcome = reproduce(recipe, "smoke", tmp_path)
    assert outcome.lines[0].ours is not None
