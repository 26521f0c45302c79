"""Follow a run from its files alone: rows as they come, how far it is, and curves as text.

Nothing is written and nothing of the run's process is needed, so the folder may be a mounted one.
"""

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedsieve.core.errors import ConfigError
from fedsieve.jobs.config import read_toml
from fedsieve.metrics.rows import Row, Summary, read_row, read_summary

BLOCKS = "▁▂▃▄▅▆▇█"
RECENT = 10  # rounds whose mean time stands for those to come


class Seen(NamedTuple):
    """A run as it is now."""

    config: dict[str, Any]  # as stored; empty while there is none
    rows: list[Row]
    summary: Summary | None  # of a run that has ended
    note: str  # why there are no (more) rows; empty when all is well

    @property
    def done(self) -> int:
        return self.rows[-1].round if self.rows else 0

    @property
    def total(self) -> int | None:
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def seconds_per_round(self) -> float | None:
        recent = [row.seconds for row in self.rows[-RECENT:]]
        return sum(recent) / len(recent) if recent else None

    @property
    def seconds_left(self) -> float | None:
        pace = self.seconds_per_round
        if pace is None or self.total is None or self.summary is not None:
            return None
        return pace * max(self.total - self.done, 0)


class Follower:
    """Reads what a run folder has gained since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rounds.jsonl"
        self._rows: list[Row] = []
        self._offset, self._inode = 0, 0

    def look(self) -> Seen:
        """The run as it is now; files that are missing or half-written are left for later."""
        summary = _summary(self.folder / "result.json")  # first: it is written after all rows
        note = ""
        try:
            note = self._read()
        except FileNotFoundError:
            note = f"{self.path} does not exist yet"
        except OSError as error:
            note = f"{self.path} cannot be read now ({error.strerror})"
        try:
            config = read_toml(self.folder / "config.toml")
        except ConfigError:
            config = {}
        seen = Seen(config, list(self._rows), summary, note)
        return seen if self._is_over(seen) else seen._replace(summary=None)

    def _read(self) -> str:
        """Take in whole lines; returns what is wrong with the next one, if anything."""
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._restart(status.st_ino)  # a resumed run cuts rows and writes them again
            file.seek(self._offset)
            lines = file.read().splitlines(keepends=True)
            if lines and self._rows and not _follows(lines[0], self._rows[-1]):
                self._restart(status.st_ino)  # cut in place, and already grown beyond that
                file.seek(0)
                lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            try:
                row = read_row(line)
            except msgspec.MsgspecError as error:
                return f"line {len(self._rows) + 1} of {self.path} is not a row ({error})"
            self._rows.append(row)
            self._offset += len(line)
        return ""

    def _restart(self, inode: int) -> None:
        self._rows, self._offset, self._inode = [], 0, inode

    def _is_over(self, seen: Seen) -> bool:
        """Whether the result is that of these rows, and not one a resumed run has left behind.

        It is if it is newer than they are. Times of copied files say nothing, but a run that has
        all rounds its configuration asks for is over too.
        """
        if seen.summary is None or seen.summary.rounds != seen.done:
            return False
        is_complete = seen.total is not None and seen.done >= seen.total
        return is_complete or _time(self.folder / "result.json") >= _time(self.path)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A curve in one line of at most `width` characters, from its lowest to its highest value.

    Missing and infinite values are left out. Of more values than characters, each character shows
    the mean of its share.
    """
    numbers = [v for v in values if v is not None and math.isfinite(v)]
    size = min(width, len(numbers))
    if size <= 0:
        return ""
    edges = [i * len(numbers) // size for i in range(size + 1)]
    means = [sum(numbers[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    if not span:
        return BLOCKS[3] * size
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((mean - low) / span * top)] for mean in means)


def _follows(line: bytes, row: Row) -> bool:
    """Whether a line can be the one after `row`; one that cannot be read yet can."""
    if not line.endswith(b"\n"):
        return True
    try:
        return read_row(line).round == row.round + 1
    except msgspec.MsgspecError:
        return True


def _summary(path: Path) -> Summary | None:
    try:
        return read_summary(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
