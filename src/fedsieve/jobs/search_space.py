"""The search space of tuning: `log(1e-4,1e-1)`, `uniform(0,1)`, `int(1,5)`, `choice(sgd,adam)`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, generator
from fedsieve.core.options import in_range, read, spell
from fedsieve.jobs.config import SETTINGS
from fedsieve.jobs.settings import TUNABLE

RANGES = "log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH), choice(A,B,...)"


@dataclass(frozen=True)
class Log:
    """Even in the logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        in_range("log: low", self.low, 0, above=True)
        in_range("log: high", self.high, self.low, above=True)

    def draw(self, key: Key) -> float:
        span = math.log(self.high / self.low)
        return _short(self.low * math.exp(span * generator(key).random()), self.low, self.high)


@dataclass(frozen=True)
class Uniform:
    """Even between two numbers."""

    low: float
    high: float

    def __post_init__(self) -> None:
        in_range("uniform: high", self.high, self.low, above=True)

    def draw(self, key: Key) -> float:
        value = self.low + (self.high - self.low) * generator(key).random()
        return _short(value, self.low, self.high)


@dataclass(frozen=True)
class Int:
    """A whole number, both ends included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        in_range("int: high", self.high, self.low)

    def draw(self, key: Key) -> int:
        return int(generator(key).integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True)
class Choice:
    """One of several values, as they are written."""

    values: tuple[str, ...]

    def draw(self, key: Key) -> str:
        return self.values[int(generator(key).integers(len(self.values)))]


Range: TypeAlias = Log | Uniform | Int | Choice
Space: TypeAlias = dict[str, Range]


def read_space(texts: Sequence[str]) -> Space:
    """`["lr=log(1e-4,1e-1)", "optimiser=choice(sgd,adam)"]` as names and ranges.

    Raises:
        ConfigError: not of that form, an empty range, or a name that may not be tuned.
    """
    space: Space = {}
    for text in texts:
        name, equals, how = (part.strip() for part in text.partition("="))
        where = f"--space {text!r}"
        if not equals or not name:
            raise ConfigError(f"{where}: write it as KEY=RANGE. Ranges: {RANGES}.")
        if name in space:
            raise ConfigError(f"{where}: {name} is given twice.")
        if name in SETTINGS and name not in TUNABLE:
            raise ConfigError(
                f"{where}: {name} says what is measured or how long; it may not be tuned. "
                f"Options of the method may, and {', '.join(TUNABLE)}."
            )
        space[name] = _read_range(how, where)
    if not space:
        raise ConfigError("nothing to tune: give --space KEY=log(LOW,HIGH), say.")
    return space


def spelled(how: Range) -> str:
    """The text that `read_space` reads back as this range."""
    return f"choice({', '.join(how.values)})" if isinstance(how, Choice) else str(spell(how))


def split_list(text: str, where: str) -> list[str]:
    """The parts between commas that stand outside parentheses and brackets.

    Raises:
        ConfigError: parentheses do not match, or a part is empty.
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            break
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise ConfigError(f"{where}: parentheses do not match.")
    parts = [part.strip() for part in parts]
    if not all(parts):
        raise ConfigError(f"{where}: a value is empty.")
    return parts


def _read_range(text: str, where: str) -> Range:
    if text.startswith("choice(") and text.endswith(")"):
        return Choice(tuple(split_list(text[len("choice(") : -1], where)))
    try:
        known: tuple[type[Log | Uniform | Int], ...] = (Log, Uniform, Int)
        return read(text, known, "range")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error} Ranges: {RANGES}.") from error


def _short(value: float, low: float, high: float) -> float:
    """The value rounded to four digits, which is enough for a random draw and easy to type."""
    return min(max(float(f"{value:.4g}"), low), high)
