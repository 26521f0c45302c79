"""Schedules against their formulas."""

import math

import pytest

from fedsieve.core.errors import ConfigError
from fedsieve.core.schedules import Constant, Cosine, Exponential, Linear, Stepwise


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
        lambda: Linear(until=-5),
        lambda: Exponential(1.1),
        lambda: Exponential(float("nan")),
    ],
)
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigError, match="must be"):
        make()
