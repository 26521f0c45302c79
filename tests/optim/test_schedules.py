"""Schedules against their formulas."""

import math
import warnings

import pytest

from fedsieve.core.errors import ConfigError
from fedsieve.core.method import in_run
from fedsieve.optim.schedules import (
    Constant,
    Cosine,
    Exponential,
    Linear,
    Stepwise,
    gradual,
    ramp_in_run,
)


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (Constant(), lambda t: 1),
        (Exponential(0.9), lambda t: 0.9**t),
        (Exponential(0.5, floor=0.2), lambda t: max(0.5**t, 0.2)),
        (Stepwise(3), lambda t: 0.1 ** (t // 3)),
        (Stepwise(every=2, gamma=0.5), lambda t: 0.5 ** math.floor(t / 2)),
        (Cosine(10), lambda t: math.cos(math.pi * min(t, 10) / 20) ** 2),
        (Cosine(4, 0.1), lambda t: 0.1 + 0.9 * math.cos(math.pi * min(t, 4) / 8) ** 2),
        (Linear(10), lambda t: max(10 - t, 0) / 10),
        (Linear(4, 0.2), lambda t: 0.2 + 0.8 * max(4 - t, 0) / 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_schedule_is_its_formula_and_starts_at_one(schedule, formula):
    assert schedule.factor(0) == pytest.approx(1)
    for t in range(25):
        assert schedule.factor(t) == pytest.approx(formula(t), abs=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stepwise(0),
        lambda: Cosine(0),
        lambda: Linear(0),
        lambda: Linear(until=-5),
        lambda: Exponential(1.1),
        lambda: Exponential(float("nan")),
    ],
)
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigError, match="must be"):
        make()


@pytest.mark.parametrize("kind", [Cosine, Linear])
def test_a_schedule_without_an_end_ends_with_the_run(kind):
    open_ = kind(floor=0.1)
    assert in_run(open_, 20) == kind(until=20, floor=0.1)
    assert in_run(open_, 20).factor(10) == pytest.approx(0.55)  # half way from 1 to 0.1
    assert in_run(open_, 20).factor(20) == pytest.approx(0.1)
    assert in_run(kind(until=5), 20) == kind(until=5)
    assert open_.factor(0) == open_.factor(1000) == 1  # before it is known how long the run is


@pytest.mark.parametrize("value", [Constant(), Stepwise(3), Exponential(0.9), 0.3, None, "cosine"])
def test_what_has_no_end_stays_as_it_is(value):
    assert in_run(value, 20) is value


def test_gradual_pruning_is_cubic():
    """With rho + (1 - rho) (1 - t / T)^3 an eighth of the way is left at half time."""
    assert gradual(0.2, 0, 8) == 1
    assert gradual(0.2, 4, 8) == pytest.approx(0.2 + 0.8 / 8)
    assert gradual(0.2, 6, 8) == pytest.approx(0.2 + 0.8 / 64)
    assert gradual(0.2, 8, 8) == gradual(0.2, 9, 8) == 0.2
    falling = [gradual(0.2, done, 8) for done in range(9)]
    assert falling == sorted(falling, reverse=True)
    assert gradual(0.2, 0, 0) == 0.2  # at once


@pytest.mark.parametrize(("rounds", "ramp"), [(1, 0), (2, 1), (3, 2), (30, 27), (101, 90)])
def test_density_falls_for_nine_tenths_of_a_run_unless_told_otherwise(rounds, ramp):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ramp_in_run(None, rounds) == ramp
        assert ramp_in_run(0, rounds) == 0
        assert ramp_in_run(rounds, rounds) == rounds  # falls to the end, and gets there


def test_a_ramp_longer_than_the_run_is_spoken_of():
    with pytest.warns(UserWarning, match=r"falls for 9 rounds and the run has 8.*Lower ramp"):
        assert ramp_in_run(9, 8) == 9
