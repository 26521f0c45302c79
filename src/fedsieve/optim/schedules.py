"""Learning-rate schedules as values: the factor of a rate over rounds."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import TypeAlias

from fedsieve.core.options import in_range


@dataclass(frozen=True)
class Constant:
    """The rate stays as it is."""

    def factor(self, t: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Exponential:
    """rate * max(gamma^round, floor)."""

    gamma: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_range("exponential: gamma", self.gamma, 0, 1)
        in_range("exponential: floor", self.floor, 0)

    def factor(self, t: int) -> float:
        return max(self.gamma**t, self.floor)


@dataclass(frozen=True)
class Stepwise:
    """rate * gamma^(round // every)."""

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        in_range("stepwise: every", self.every, 1)
        in_range("stepwise: gamma", self.gamma, 0, 1)

    def factor(self, t: int) -> float:
        return float(self.gamma ** (t // self.every))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the rate to `floor` of it at round `until`, by default the run's last."""

    until: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_range("cosine: until", 1 if self.until is None else self.until, 1)
        in_range("cosine: floor", self.floor, 0)

    def factor(self, t: int) -> float:
        share = min(t / self.until, 1.0) if self.until else 0.0
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2

    def in_run(self, rounds: int) -> "Cosine":
        """The schedule in a run of so many rounds."""
        return self if self.until is not None else replace(self, until=rounds)


@dataclass(frozen=True)
class Linear:
    """A straight line from the rate to `floor` of it at round `until`, by default the last."""

    until: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_range("linear: until", 1 if self.until is None else self.until, 1)
        in_range("linear: floor", self.floor, 0)

    def factor(self, t: int) -> float:
        share = min(t / self.until, 1.0) if self.until else 0.0
        return 1 - (1 - self.floor) * share

    def in_run(self, rounds: int) -> "Linear":
        """The schedule in a run of so many rounds."""
        return self if self.until is not None else replace(self, until=rounds)


Schedule: TypeAlias = Constant | Exponential | Stepwise | Cosine | Linear


def ramp_in_run(ramp: int | None, rounds: int, parts: int = 10) -> int:
    """Rounds of gradual pruning, by default all but one of `parts`; warns of a longer ramp."""
    if ramp is None:
        return (parts - 1) * rounds // parts
    if ramp > rounds:
        warnings.warn(
            f"density falls for {ramp} rounds and the run has {rounds}: it ends denser than "
            "target_density. Lower ramp or ask for more rounds.",
            stacklevel=2,
        )
    return ramp


def gradual(density: float, done: int, ramp: int) -> float:
    """Density after `done` rounds of gradual pruning: from 1 to `density` in `ramp` rounds.

    The cubic of Zhu & Gupta, "To prune, or not to prune", 2017: fast at first, while there is much
    that does not matter.
    """
    left = 1 - done / ramp if done < ramp else 0.0
    return density + (1 - density) * left**3
