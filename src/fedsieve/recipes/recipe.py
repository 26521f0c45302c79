"""A recipe is a value: the rows of a table, what they should give, and how large to run them.

Tiers, from the smallest to the paper's own setting:

    smoke   minutes on embedded data: does everything work, is accuracy sane
    small   about half an hour on two cores: real data, fewer rounds
    medium  hours: where what small shows has not settled yet
    full    the setting of the paper; the only one that is judged against it
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from operator import attrgetter
from statistics import mean
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.jobs.library import Record
from fedsieve.metrics.rows import SCORES, SUMMARY
from fedsieve.recipes.verdict import Expected, Printed

TierName = Literal["smoke", "small", "medium", "full"]
TIERS: tuple[TierName, ...] = get_args(TierName)
Settings: TypeAlias = Mapping[str, Any]  # keywords of fedsieve.run
ON_DIGITS: Settings = {  # a smoke test of ten rounds
    "dataset": "digits",
    "model": "conv_small",
    "partition": "dirichlet(0.5)",
    "clients": 20,
    "rounds": 10,
    "batch_size": 16,
    "eval_every": 5,
}
Figures: TypeAlias = dict[str, float]  # metric -> value


class Figure(NamedTuple):
    """What a formula gives, in a unit, and what a paper prints for it."""

    label: str
    unit: str
    value: float | Decimal
    formula: str
    source: str = ""
    printed: Printed | None = None

    @property
    def expected(self) -> tuple[Expected, ...]:
        return () if self.printed is None else (Expected(self.unit, self.printed, self.source),)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table, or several that are made together.

    Figures are those of a run of `settings`, unless the row has a function that makes them.

    Attributes:
        label: names the row in its recipe.
        settings: keywords of `fedsieve.run`, without the seed.
        expected: holds for the tier `full` alone.
        measure: makes rows "label: NAME" of the settings and a seed, so that they share one
            training; what it gave is kept in the library like a run.
        calculate: gives figures by formula, without settings or seeds.
    """

    label: str
    settings: Settings = field(default_factory=dict)
    expected: tuple[Expected, ...] = ()
    measure: Callable[[Settings], dict[str, Figures]] | None = None
    calculate: Callable[[], Iterable[Figure]] | None = None


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Settings that override those of the rows, and this tier's own figures by row label.

    `by_row` are further settings by label; `rows` stand in place of the recipe's.
    """

    settings: Settings = field(default_factory=dict)
    expected: Mapping[str, tuple[Expected, ...]] = field(default_factory=dict)
    by_row: Mapping[str, Settings] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table to be run; `shown` are metrics in every row that is a run, expected or not."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...] = ()
    tiers: Mapping[TierName, Tier]
    shown: tuple[str, ...] = ("global_accuracy",)

    def __post_init__(self) -> None:
        for name, tier in self.tiers.items():
            rows = self.rows_of(name)
            labels = {row.label for row in rows}
            named = {x.split(": ")[0] for x in (*tier.expected, *tier.by_row)}
            if len(labels) < len(rows) or named - labels:
                raise ConfigError(
                    f"recipe {self.name}: labels of rows must differ, and tiers may expect figures "
                    f"of these alone: {sorted(labels)}; found {sorted(named - labels)} beside them."
                )
            expected = (*tier.expected.values(), *(row.expected for row in rows))
            for metric in (*self.shown, *(x.metric for of_row in expected for x in of_row)):
                if metric not in METRICS:
                    raise ConfigError(f"recipe {self.name}: {unknown('metric', metric, METRICS)}")

    def rows_of(self, tier: TierName) -> tuple[Row, ...]:
        """The rows of a tier.

        Raises:
            ConfigError: the recipe has no such tier.
        """
        if tier not in self.tiers:
            raise ConfigError(unknown(f"tier of {self.name}", tier, self.tiers))
        return self.tiers[tier].rows or self.rows

    def settings(self, row: Row, tier: TierName) -> dict[str, Any]:
        """Keywords of fedsieve.run for a row in a tier, without the seed.

        Options are the papers', unless a row names another preset.
        """
        its = self.tiers[tier]
        return {
            "preset": "paper",
            **row.settings,
            **its.settings,
            **its.by_row.get(row.label, {}),
        }

    def datasets(self, tier: TierName) -> tuple[str, ...]:
        """The data sets that a tier needs."""
        rows = (row for row in self.rows_of(tier) if row.calculate is None)
        names = (str(self.settings(row, tier).get("dataset", "digits")) for row in rows)
        return tuple(dict.fromkeys(names))

    def departure(self, row: Row, tier: TierName) -> str:
        """In which settings a tier differs from `full`; empty if in none."""
        here = self.settings(row, tier)
        there = self.settings(row, "full") if "full" in self.tiers else {}
        names = [n for n in {**there, **here} if here.get(n) != there.get(n)]
        return ", ".join(f"{n} {_word(here, n)} in place of {_word(there, n)}" for n in names)


def _late(name: str, record: Record) -> float | None:
    """The mean over the last ten evaluations."""
    scores = [v for row in record.rows if (v := getattr(row, name)) is not None][-10:]
    return mean(scores) if scores else None


def _at_best(record: Record, name: str) -> float | None:
    """A figure of the round whose local accuracy is the largest, the first of equals."""
    scored = [(row.local_accuracy, row) for row in record.rows if row.local_accuracy is not None]
    return getattr(max(scored, key=lambda pair: pair[0])[1], name) if scored else None


def _per_client(record: Record, name: str) -> float | None:
    """The sum over a client's rounds of a method's own figure, averaged over all clients."""
    sums = [row.clients * row.values[name] for row in record.rows if name in row.values]
    return sum(sums) / record.summary.num_clients if sums else None


METRICS: dict[str, Callable[[Record], float | None]] = {
    **{name: attrgetter(f"summary.{name}") for name, metric in SUMMARY.items() if metric.unit},
    **{f"late_{name}": partial(_late, name) for name in SCORES},
    "best_local_density": lambda r: _at_best(r, "local_density"),
    "best_layer_mean_density": lambda r: _at_best(r, "layer_mean_density"),
    "expected_density": lambda r: r.summary.values.get("expected_density"),
    "sparsity": lambda r: 1 - r.summary.density,
    "true_mb": lambda r: r.summary.sent_bytes / 1e6,
    "true_gib_per_client": lambda r: r.summary.sent_bytes / r.summary.num_clients / 2**30,
    "paper_mb": lambda r: r.summary.paper_bytes / 1e6,
    "paper_gbit": lambda r: 8 * r.summary.paper_bytes / 1e9,
    "paper_gib": lambda r: r.summary.paper_bytes / 2**30,
    "paper_gib_per_client": lambda r: r.summary.paper_bytes / r.summary.num_clients / 2**30,
    "macs_per_client": lambda r: r.summary.macs_dense / r.summary.num_clients,
    "macs_appendix_per_client": lambda r: _per_client(r, "macs_appendix"),
    "macs_code_per_client": lambda r: _per_client(r, "macs_code"),
}
_recipes: dict[str, Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Make a recipe known under its name."""
    if _recipes.get(recipe.name, recipe) != recipe:
        raise ConfigError(f"recipe {recipe.name!r} is registered already.")
    _recipes[recipe.name] = recipe
    return recipe


def registered() -> dict[str, Recipe]:
    """All known recipes by name."""
    return dict(sorted(_recipes.items()))


def find(name: str) -> Recipe:
    """The recipe called `name`, or ConfigError with the nearest known name."""
    if name not in _recipes:
        raise ConfigError(unknown("recipe", name, _recipes))
    return _recipes[name]


def _word(settings: Settings, name: str) -> str:
    return str(settings.get(name, "the default"))
