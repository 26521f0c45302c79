"""A picture of curves in characters, for terminals and logs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedsieve.drawing.svg import Scale, log_ticks, ticks


class Mark(NamedTuple):
    """A character, and the number of the curve it belongs to (none: axes)."""

    text: str
    curve: int | None = None


Line = list[Mark]


def letter(curve: int) -> str:
    """The letter of a curve: A, B, ... and from the 27th on again."""
    return chr(ord("A") + curve % 26)


def curves(
    series: Sequence[Sequence[tuple[float, float]]], label: str, width: int = 72, height: int = 12
) -> list[Line]:
    """Points of several curves on a logarithmic x axis; the last of each is a capital letter.

    x must be positive. The lines are at most `width` characters long.
    """
    points = [p for one in series for p in one]
    if not points:
        return []
    xs, ys = [x for x, _ in points], [y for _, y in points]
    room = 1.05 if max(xs) > min(xs) else 2.0
    heights = [f"{y:.3g}" for y in ticks(*_wide(ys))]
    left = max(map(len, heights)) + 2
    across = Scale(min(xs) / room, max(xs) * room, left, width - 1, is_log=True)
    up = Scale(*_wide(ys), height - 1, 0)
    grid = [[Mark(" ")] * width for _ in range(height + 2)]
    for row in grid[:height]:
        row[left - 1] = Mark("│")
    for text in heights:
        _write(grid[round(up(float(text)))], left - 2, f"{text} ┤", is_end=True)
    for curve, one in enumerate(series):
        for x, y in one[:-1]:
            grid[round(up(y))][round(across(x))] = Mark(letter(curve).lower(), curve)
    for curve, one in enumerate(series):
        for x, y in one[-1:]:
            grid[round(up(y))][round(across(x))] = Mark(letter(curve), curve)
    grid[height] = [Mark(" ")] * (left - 1) + [Mark("└"), *[Mark("─")] * (width - left)]
    free = left
    for value in log_ticks(across.low, across.high):
        text = f"{value:.3g}"
        at = round(across(value)) - len(text) // 2
        if free <= at <= width - len(text):
            grid[height][round(across(value))] = Mark("┴")
            _write(grid[height + 1], at, text)
            free = at + len(text) + 1
    return [*grid, [*([Mark(" ")] * left), *map(Mark, label)]]


def _wide(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.02 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _write(line: Line, at: int, text: str, *, is_end: bool = False) -> None:
    start = at + 2 - len(text) if is_end else at
    for place, character in enumerate(text, math.floor(start)):
        line[place] = Mark(character)
