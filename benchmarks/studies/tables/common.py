"""What tables of several pages have in common."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    """Mean and sample standard deviation, which one value has not."""
    around = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{around}{unit}"


def by_row(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines of each row, in the order of their seeds."""
    found: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda x: x.get("seed", 0)):
        found.setdefault(line["row"], []).append(line)
    return found


def sent_mb(figures: Mapping[str, float]) -> float:
    """Megabytes of both directions."""
    return (figures["up_bytes"] + figures["down_bytes"]) / 1e6


def at(line: Line, number: int) -> Line | None:
    """The evaluated round of this number."""
    return next((point for point in line["rounds"] if point["round"] == number), None)
