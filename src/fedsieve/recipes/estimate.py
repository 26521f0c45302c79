"""A rough idea of how long a tier takes, without its data."""

import math
from typing import NamedTuple

from fedsieve.jobs.config import Config, make
from fedsieve.jobs.job import DEFAULT_CLIENTS, DEFAULT_COHORT
from fedsieve.recipes.papers.sizes import COLOUR32, GREY28, sizes
from fedsieve.recipes.recipe import Recipe, TierName

MACS_PER_SECOND = 20e9  # assumed of one core; small convolutions reach half of it, matrices more
STEP_SECONDS = 1e-3  # assumed for a mini-batch besides, which is what counts in tiny models


class Shape(NamedTuple):
    """A data set from outside."""

    inputs: tuple[int, ...]
    outputs: int
    train: int
    test: int


SHAPES = {
    "digits": Shape((1, 8, 8), 10, 1442, 355),
    "mnist": Shape(GREY28, 10, 60_000, 10_000),
    "fashion_mnist": Shape(GREY28, 10, 60_000, 10_000),
    "cifar10": Shape(COLOUR32, 10, 50_000, 10_000),
    "cifar100": Shape(COLOUR32, 100, 50_000, 10_000),
}


class Estimate(NamedTuple):
    """One seed of a tier; `core_seconds` is for one core and None where nothing can be said."""

    rows: int
    rounds: int  # of all rows together
    core_seconds: float | None


def estimate(recipe: Recipe, tier: TierName) -> Estimate:
    """What one seed of all rows takes; training is three forward passes, evaluation one."""
    rows = [row for row in recipe.rows_of(tier) if row.calculate is None]
    configs = [make(recipe.settings(row, tier)) for row in rows]
    seconds = [
        _seconds(config) if row.measure is None else None
        for row, config in zip(rows, configs, strict=True)
    ]
    known = [x for x in seconds if x is not None]
    total = sum(known) if len(known) == len(seconds) else None
    return Estimate(len(recipe.rows_of(tier)), sum(config.rounds for config in configs), total)


def _seconds(config: Config) -> float | None:
    if config.dataset not in SHAPES or config.model == "auto":
        return None
    shape = SHAPES[config.dataset]
    cohort, clients = config.cohort or DEFAULT_COHORT, config.clients or DEFAULT_CLIENTS
    steps_of_method = 1 if config.options.get("stepwise") else config.options.get("local_steps")
    fixed = config.steps if steps_of_method is None else steps_of_method
    steps = fixed or config.epochs * math.ceil(shape.train / clients / config.batch_size)
    work = config.epochs * shape.train / clients
    if fixed is not None:
        work = fixed * config.batch_size
    trained = config.rounds * cohort
    evaluated = -(-config.rounds // config.eval_every) * shape.test
    forward = sizes(config.model, shape.inputs, shape.outputs).task.graph.macs
    macs = forward * (3 * trained * work + evaluated)
    return macs / MACS_PER_SECOND + trained * steps * STEP_SECONDS
