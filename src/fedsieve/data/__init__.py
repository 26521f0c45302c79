"""Data sets, how they are cut among clients, and the mini-batches that come of it."""

from typing import Literal, TypeAlias

InputScale: TypeAlias = Literal["standard", "unit", "raw255"]
