"""Recipes run once, are found again, and are judged only where they may be."""

import dataclasses

import pytest

from fedsieve.core.errors import ConfigError, DataError
from fedsieve.jobs import library
from fedsieve.jobs.api import Watcher
from fedsieve.jobs.config import make
from fedsieve.jobs.job import canonical
from fedsieve.methods.spafl import SpaFL
from fedsieve.optim.optimisers import SGD
from fedsieve.optim.schedules import Constant
from fedsieve.recipes.estimate import MACS_PER_SECOND, STEP_SECONDS, estimate
from fedsieve.recipes.papers.em_fashion_mnist import recipe as em
from fedsieve.recipes.papers.sizes import GREY28, sizes
from fedsieve.recipes.recipe import TIERS, Recipe, Row, Tier, find, register, registered
from fedsieve.recipes.runner import reproduce
from fedsieve.recipes.verdict import (
    AtLeast,
    AtMost,
    Expected,
    Measured,
    Within,
    judge,
    measured,
)

TINY = {"dataset": "digits", "model": "mlp(hidden=[8])", "clients": 4, "rounds": 2}
ACCURACY = Expected("global_accuracy", Within(0.5, 0.1), "by hand")


def tiny(**tiers):
    return Recipe(
        name="tiny",
        title="",
        source="",
        rows=(
            Row(label="a", settings=TINY | {"method": "fedavg"}, expected=(ACCURACY,)),
            Row(label="b", settings=TINY | {"method": "fedprox", "optimiser": "sgd(momentum=0.5)"}),
        ),
        tiers={"smoke": Tier(settings={"rounds": 1}), "full": Tier(settings={}), **tiers},
    )


@pytest.mark.parametrize(
    ("bound", "mean", "kind", "words"),
    [
        (Within(0.9, 0.02), 0.91, "within", "within 0.02"),
        (Within(0.9, 0.02), 0.87, "off", "off by -0.03 (tolerance 0.02)"),
        (Within(137.76, 0.0), 137.76, "within", "equal"),
        (AtLeast(0.8), 0.8, "within", "at least 0.8"),
        (AtLeast(0.8), 0.7, "off", "0.1 below 0.8"),
        (AtMost(0.06), 0.06, "within", "at most 0.06"),
        (AtMost(0.06), 0.08, "off", "0.02 above 0.06"),
    ],
)
def test_a_verdict_says_within_or_off_by_how_much(bound, mean, kind, words):
    verdict = judge(Measured(mean, None, 1), Expected("density", bound, ""))
    assert (verdict.kind, verdict.text) == (kind, words)


def test_what_departs_from_the_paper_or_has_no_figure_is_not_judged():
    ours = Measured(0.1, 0.0, 2)
    departed = judge(ours, ACCURACY, "rounds 1 in place of 2")
    assert departed.kind == "not comparable"
    assert "rounds 1 in place of 2" in departed.text
    assert judge(ours, None).kind == "no figure"
    assert judge(None, ACCURACY).kind == "not run"


def test_spread_is_the_sample_deviation_and_absent_for_one_seed():
    assert measured([1.0, 2.0, 3.0]) == Measured(2.0, 1.0, 3)  # squares 1 + 0 + 1 over n - 1 = 2
    assert measured([4.0]) == Measured(4.0, None, 1)
    assert measured([]) is None


def test_only_full_is_judged_against_the_paper(tmp_path):
    smoke = reproduce(tiny(), "smoke", tmp_path)
    assert [line.verdict.kind for line in smoke.lines] == ["not comparable", "no figure"]
    assert smoke.lines[0].verdict.text == "not comparable: rounds 1 in place of 2"
    full = reproduce(tiny(), "full", tmp_path)
    assert full.lines[0].verdict.kind in {"within", "off"}


def test_a_tier_has_figures_of_its_own(tmp_path):
    hopeless = Expected("global_accuracy", AtLeast(1.1), "impossible")
    recipe = tiny(small=Tier(settings={"rounds": 1}, expected={"b": (hopeless,)}))
    outcome = reproduce(recipe, "small", tmp_path)
    assert [line.verdict.kind for line in outcome.lines] == ["not comparable", "off"]
    assert outcome.is_off


def test_figures_are_means_over_seeds_and_costs_those_of_the_runs(tmp_path):
    outcome = reproduce(tiny(), "smoke", tmp_path, seeds=2)
    runs = [
        library.find(
            TINY | {"method": "fedavg", "preset": "paper", "rounds": 1, "seed": seed}, tmp_path
        ).summary
        for seed in (0, 1)
    ]
    first, second = (run.global_accuracy for run in runs)
    ours = outcome.lines[0].ours
    assert ours.n == 2
    assert ours.mean == pytest.approx((first + second) / 2)
    assert ours.spread == pytest.approx(abs(first - second) / 2**0.5)
    values = 64 * 8 + 8 + 8 * 10 + 10
    assert outcome.costs["a"].paper_bytes == 4 * 2 * 4 * values  # 4 clients, both ways
    assert outcome.costs["a"].true_bytes == sum(r.up_bytes + r.down_bytes for r in runs) / 2


def test_an_interrupt_keeps_what_is_done_and_the_next_call_goes_on(tmp_path):
    class Impatient(Watcher):
        def finished_round(self, row):
            raise KeyboardInterrupt

    def watch(label):
        return Impatient() if label.startswith("b") else Watcher()

    stopped = reproduce(tiny(), "full", tmp_path, watch=watch)
    assert stopped.unfinished == ("b, seed 0",)
    assert [line.verdict.kind for line in stopped.lines][1] == "not run"
    labels = []

    def note(label):
        labels.append(label)
        return Watcher()

    assert not reproduce(tiny(), "full", tmp_path, watch=note).unfinished
    assert labels == ["b, seed 0"]


def test_a_row_that_diverges_is_left_out_and_the_others_are_shown(tmp_path, caplog):
    recipe = tiny()
    first, *others = recipe.rows
    explosive = {"lr": 1000, "optimiser": "sgd(weight_decay=1e9)"}
    wild = dataclasses.replace(first, label="wild", settings=first.settings | explosive)
    outcome = reproduce(dataclasses.replace(recipe, rows=(wild, first, *others)), "full", tmp_path)
    assert outcome.unfinished == ("wild, seed 0",)
    assert first.label in outcome.costs
    assert "wild, seed 0 is left out" in caplog.text


def test_missing_data_is_said_before_anything_runs(tmp_path):
    row = Row(label="c", settings=TINY | {"dataset": "mnist"})
    recipe = dataclasses.replace(tiny(), rows=(*tiny().rows, row))
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        reproduce(recipe, "smoke", tmp_path / "library", data_root=tmp_path)
    assert not (tmp_path / "library").exists()


def test_wrong_recipes_and_arguments_are_refused(tmp_path):
    misspelt = Expected("acuracy", AtLeast(1), "")
    with pytest.raises(ConfigError, match="recipe tiny: unknown metric 'acuracy'"):
        tiny(small=Tier(expected={"a": (misspelt,)}))
    row = Row(label="a", expected=(misspelt,))
    with pytest.raises(ConfigError, match="recipe x: unknown metric 'acuracy'"):
        Recipe(name="x", title="", source="", rows=(row,), tiers={"full": Tier()})
    with pytest.raises(ConfigError, match="labels"):
        tiny(small=Tier(settings={}, expected={"z": ()}))
    with pytest.raises(ConfigError, match="Did you mean 'em_fashion_mnist'"):
        find("em_fashon_mnist")
    with pytest.raises(ConfigError, match="registered already"):
        register(dataclasses.replace(em, title="another"))
    with pytest.raises(ConfigError, match="tier of tiny 'small'"):
        reproduce(tiny(), "small", tmp_path)
    with pytest.raises(ConfigError, match="seeds=0"):
        reproduce(tiny(), "smoke", tmp_path, seeds=0)
    with pytest.raises(ConfigError, match="no row with 'c'"):
        reproduce(tiny(), "smoke", tmp_path, only="c")


def test_an_estimate_counts_three_passes_evaluations_and_steps():
    cost = estimate(em, "full")
    assert (cost.rows, cost.rounds) == (3, 1500)
    macs = 2_293_000 * (3 * 500 * 10 * 3 * 600 + 50 * 10_000)
    steps = 500 * 10 * 3 * 10  # 600 examples in batches of 64 are ten
    assert cost.core_seconds == pytest.approx(3 * (macs / MACS_PER_SECOND + steps * STEP_SECONDS))
    auto = dataclasses.replace(
        em, rows=(Row(label="x", settings={}),), tiers={"full": Tier(settings={})}
    )
    assert estimate(auto, "full").core_seconds is None


def test_the_full_tier_of_em_is_the_stated_setting():
    for row in em.rows:
        settings = em.settings(row, "full")
        assert settings["rounds"] == 500
        assert not em.departure(row, "full")
        assert em.datasets("small") == em.datasets("full") == ("fashion_mnist",)
    assert em.datasets("smoke") == ("digits",)


@pytest.mark.parametrize("name", registered())
def test_every_tier_has_settings_that_can_be_run(name):
    recipe = find(name)
    for tier in (t for t in TIERS if t in recipe.tiers):
        for row in recipe.rows_of(tier):
            canonical(make({**recipe.settings(row, tier), "seed": 0}))


def test_rows_have_the_papers_options_unless_they_name_others():
    recipe = tiny(small=Tier(settings={"rounds": 3}, by_row={"b": {"preset": "paper", "lr": 0.3}}))
    first, second = (make(recipe.settings(row, "full")).options for row in recipe.rows)
    assert first["lr"] == 0.1
    assert first["clip_norm"] is None
    assert first["schedule"] == Constant()
    assert second == first | {"optimiser": SGD(momentum=0.5)}
    apart = make(recipe.settings(recipe.rows[1], "small"))
    assert apart.rounds == 3
    assert apart.options == second | {"lr": 0.3}
    for known in registered().values():
        for tier in known.tiers:
            assert all(known.settings(row, tier)["preset"] for row in known.rows_of(tier))


def test_a_row_may_name_another_preset():
    spafl = [row for row in find("spafl_fashion_mnist").rows if row.settings["method"] == "spafl"]
    presets = {find("spafl_fashion_mnist").settings(row, "full")["preset"] for row in spafl}
    assert presets <= set(SpaFL.presets)
    row = Row(label="x", settings={"method": "spafl", "preset": "code"})
    recipe = dataclasses.replace(tiny(), rows=(row,))
    found = make(recipe.settings(row, "full"))
    assert found.options["granularity"] == "filter"


def test_single_rows_of_a_tier_may_have_settings_of_their_own():
    recipe = find("vardrop_random")
    dense, sparse, *_ = recipe.rows
    for tier in recipe.tiers:
        settings = recipe.settings(dense, tier)
        assert settings["warmup"] == settings["rounds"]
        assert recipe.settings(sparse, tier)["warmup"] < settings["rounds"]
    with pytest.raises(ConfigError, match="labels of rows"):
        dataclasses.replace(recipe, tiers={"smoke": Tier(settings={}, by_row={"nobody": {}})})


def test_a_missing_start_is_said_before_anything_runs(tmp_path):
    recipe = find("vardrop_shared_alpha")
    on_digits = Tier(settings={"dataset": "digits", "model": "conv_small"})
    with pytest.raises(ConfigError, match=r"starts from pretrained/.*safetensors, which is not"):
        reproduce(dataclasses.replace(recipe, tiers={"full": on_digits}), "full", tmp_path)
    assert not list(tmp_path.iterdir())


def test_missing_signs_and_house_numbers_are_named(tmp_path):
    with pytest.raises(DataError, match=r"npz:gtsrb.npz: no such file"):
        reproduce(find("vardrop_gtsrb_svhn"), "full", tmp_path)


def test_methods_that_count_their_own_steps_are_estimated_by_them():
    recipe = find("vardrop_random")
    row = recipe.rows[0]
    one = dataclasses.replace(
        recipe, rows=(row,), tiers={"full": Tier(settings={"eval_every": 10**9})}
    )
    found = estimate(one, "full")
    forward = sizes("cifarnet", GREY28, 10).task.graph.macs
    steps = row.settings["rounds"] * 4
    expected = forward * (3 * steps * 128 + 10_000) / MACS_PER_SECOND + steps * STEP_SECONDS
    assert found.core_seconds == pytest.approx(expected)
