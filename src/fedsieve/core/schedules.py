"""Learning-rate schedules as values: the factor of a rate over rounds."""

import math
from dataclasses import dataclass
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
    """Half a cosine from the rate to `floor` of it at round `until`."""

    until: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_range("cosine: until", self.until, 1)
        in_range("cosine: floor", self.floor, 0)

    def factor(self, t: int) -> float:
        share = min(t / self.until, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class Linear:
    """A straight line from the rate to `floor` of it at round `until`."""

    until: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        in_range("linear: until", self.until, 1)
        in_range("linear: floor", self.floor, 0)

    def factor(self, t: int) -> float:
        return 1 - (1 - self.floor) * min(t / self.until, 1.0)


Schedule: TypeAlias = Constant | Exponential | Stepwise | Cosine | Linear
