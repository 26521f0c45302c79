"""A recipe is a value: the rows of a table, what they should give, and how large to run them.

Tiers, from the smallest to the paper's own setting:

    smoke   minutes on embedded data: does everything work, is accuracy sane
    small   about half an hour on two cores: real data, fewer rounds
    medium  hours: where what small shows has not settled yet
    full    the setting of the paper; the only one that is judged against it
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from statistics import mean, stdev
from typing import Any, Literal, TypeAlias, get_args

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.jobs.library import Record
from fedsieve.metrics.rows import SCORES, SUMMARY
from fedsieve.recipes.figure import Calculated

TierName = Literal["smoke", "small", "medium", "full"]
TIERS: tuple[TierName, ...] = get_args(TierName)
Settings: TypeAlias = Mapping[str, Any]  # keywords of fedsieve.run
Trial: TypeAlias = dict[str, dict[str, float]]  # row -> metric -> value


@dataclass(frozen=True)
class Within:
    """The mean over seeds lies within `tolerance` of `value`."""

    value: float
    tolerance: float


@dataclass(frozen=True)
class AtLeast:
    """The mean over seeds is `value` or more."""

    value: float


@dataclass(frozen=True)
class AtMost:
    """The mean over seeds is `value` or less."""

    value: float


Bound: TypeAlias = Within | AtLeast | AtMost


@dataclass(frozen=True)
class Expected:
    """A figure of a row: which one (see METRICS), what it should be, and who says so."""

    metric: str
    bound: Bound
    source: str

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ConfigError(unknown("metric", self.metric, METRICS))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table; `expected` holds for the tier `full` alone."""

    label: str
    settings: Settings
    expected: tuple[Expected, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Settings that override those of the rows, and this tier's own figures by row label.

    `own` are further settings of single rows, by label too.
    """

    settings: Settings
    expected: Mapping[str, tuple[Expected, ...]] = field(default_factory=dict)
    own: Mapping[str, Settings] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table to be run; `shown` are metrics in every row, expected or not."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    tiers: Mapping[TierName, Tier]
    shown: tuple[str, ...] = ("global_accuracy",)

    def __post_init__(self) -> None:
        labels = {row.label for row in self.rows}
        named = (x for tier in self.tiers.values() for x in (*tier.expected, *tier.own))
        strangers = set(named) - labels
        if len(labels) < len(self.rows) or strangers:
            raise ConfigError(
                f"recipe {self.name}: labels of rows must differ, and tiers may expect figures of "
                f"these alone: {sorted(labels)}; found {sorted(strangers)} beside them."
            )

    def settings(self, row: Row, tier: TierName) -> dict[str, Any]:
        """Keywords of fedsieve.run for a row in a tier, without the seed.

        Options are the papers', unless a row names another preset.
        """
        its = self.tiers[tier]
        own = {**row.settings, **its.settings, **its.own.get(row.label, {})}
        return {"preset": "paper", **own}

    def datasets(self, tier: TierName) -> tuple[str, ...]:
        """The data sets that a tier needs."""
        names = (str(self.settings(row, tier).get("dataset", "digits")) for row in self.rows)
        return tuple(dict.fromkeys(names))

    def departure(self, row: Row, tier: TierName) -> str:
        """In which settings a tier differs from `full`; empty if in none."""
        here = self.settings(row, tier)
        there = self.settings(row, "full") if "full" in self.tiers else {}
        names = [n for n in {**there, **here} if here.get(n) != there.get(n)]
        return ", ".join(f"{n} {_word(here, n)} in place of {_word(there, n)}" for n in names)


@dataclass(frozen=True, kw_only=True)
class StudyTier:
    """Cells by name, and what rows of them are expected to give, as "cell: row"."""

    cells: Mapping[str, Settings]
    expected: Mapping[str, tuple[Expected, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Tables whose rows share one training, so that they are compared on the same networks.

    A cell is a setting; `measure` makes one trial of it, with a seed, which has all rows.
    """

    name: str
    title: str
    source: str
    tiers: Mapping[TierName, StudyTier]
    measure: Callable[[Settings], Trial]

    def datasets(self, tier: TierName) -> tuple[str, ...]:
        """The data sets that a tier needs."""
        cells = self.tiers[tier].cells.values()
        return tuple(dict.fromkeys(str(cell.get("dataset", "digits")) for cell in cells))


@dataclass(frozen=True)
class Measured:
    """Mean and sample standard deviation over n seeds; no deviation for one."""

    mean: float
    spread: float | None
    n: int


@dataclass(frozen=True)
class Verdict:
    """How a row compares with what was expected of it."""

    kind: Literal["within", "off", "not comparable", "no figure", "not run"]
    text: str


def measured(values: list[float]) -> Measured | None:
    """Mean and spread over seeds, or None without any."""
    if not values:
        return None
    return Measured(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def judge(ours: Measured | None, expected: Expected | None, departure: str = "") -> Verdict:
    """Compare a measured figure with the expected one, unless settings departed from it."""
    if ours is None:
        return Verdict("not run", "not run")
    if expected is None:
        return Verdict("no figure", "no figure")
    if departure:
        return Verdict("not comparable", f"not comparable: {departure}")
    is_met, text = _compare(ours.mean, expected.bound)
    return Verdict("within" if is_met else "off", text)


def _late(name: str, record: Record) -> float | None:
    """The mean over the last ten evaluations."""
    found = [v for row in record.rows if (v := getattr(row, name)) is not None][-10:]
    return mean(found) if found else None


def _at_best(record: Record, name: str) -> float | None:
    """A figure of the round whose local accuracy is the largest, the first of equals."""
    scored = [(row.local_accuracy, row) for row in record.rows if row.local_accuracy is not None]
    return getattr(max(scored, key=lambda pair: pair[0])[1], name) if scored else None


def _per_client(record: Record, name: str) -> float | None:
    """The sum over a client's rounds of a method's own figure, averaged over all clients."""
    found = [row.clients * row.values[name] for row in record.rows if name in row.values]
    return sum(found) / record.summary.num_clients if found else None


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

AnyRecipe: TypeAlias = Recipe | Calculated | Study
_recipes: dict[str, AnyRecipe] = {}


def register(recipe: AnyRecipe) -> AnyRecipe:
    """Make a recipe known under its name."""
    if _recipes.get(recipe.name, recipe) != recipe:
        raise ConfigError(f"recipe {recipe.name!r} is registered already.")
    _recipes[recipe.name] = recipe
    return recipe


def registered() -> dict[str, AnyRecipe]:
    """All known recipes by name."""
    return dict(sorted(_recipes.items()))


def find(name: str) -> AnyRecipe:
    """The recipe called `name`, or ConfigError with the nearest known name."""
    if name not in _recipes:
        raise ConfigError(unknown("recipe", name, _recipes))
    return _recipes[name]


def _word(settings: Settings, name: str) -> str:
    return str(settings.get(name, "the default"))


def _compare(value: float, bound: Bound) -> tuple[bool, str]:
    off = value - bound.value
    if isinstance(bound, AtLeast):
        return off >= 0, f"{'at least' if off >= 0 else f'{-off:.4g} below'} {bound.value:g}"
    if isinstance(bound, AtMost):
        return off <= 0, f"{'at most' if off <= 0 else f'{off:.4g} above'} {bound.value:g}"
    if abs(off) <= 1e-9 * abs(bound.value):
        return True, "equal"
    if abs(off) <= bound.tolerance:
        return True, f"within {bound.tolerance:.3g}"
    return False, f"off by {off:+.4g} (tolerance {bound.tolerance:.3g})"
