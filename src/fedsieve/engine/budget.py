"""Messages of a given size: steps are chosen so that a round takes the bytes asked for.

Broadcasts get at most half, on the finest lattice that fits; clients share what is left, each with
uniform steps found by trial. Large steps make most values 0, so density and bits are chosen as one;
they are taken without dither, whose noise grows with the step.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from fedsieve.wire.compressors import Compression
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.compressors.uniform import Uniform
from fedsieve.wire.frame import Payload

DOWN_SHARE = 0.5
UP_LEAST = 0.25  # for clients, where broadcasts alone take too much: the first ones are whole
DITHERED = 3.0  # the largest step with dither
STEPS = tuple(2.0**k for k in range(-3, 4))  # of lattices tried, finest first
TOLERANCE = 1.02  # of the target
NEAR = 0.005  # of a budget that a message may stay below it
_TRIALS, _FINEST, _COARSEST = 14, 2.0**-12, 2.0**12

T = TypeVar("T")
log = logging.getLogger("fedsieve")


class RoundBudget:
    """The bytes that a round may take, both ways together; any number if there is no target."""

    def __init__(self, target: int | None, cohort: int) -> None:
        self._target, self._cohort, self._missed = target, cohort, False

    def broadcasts(
        self, encoded: Callable[[Compression], T], size: Callable[[T], int], down: Compression
    ) -> T:
        """The broadcasts on the finest lattice that keeps to their share, or the coarsest."""
        if self._target is None or not isinstance(down, Lattice):
            return encoded(down)
        for step in STEPS:
            tried = encoded(Lattice(step))
            if size(tried) <= DOWN_SHARE * self._target:
                break
        return tried

    def of_reply(self, downs: Sequence[int]) -> int:
        """Bytes left for the reply to each of the broadcasts; 0 if there is no target."""
        if self._target is None or not downs:
            return 0
        each = self._target / self._cohort
        return max(int(max(each - sum(downs) / len(downs), UP_LEAST * each)), 1)

    def compare(self, number: int, size: int) -> None:
        """Say so, once, if a round takes more bytes than it should."""
        if self._target is not None and size > TOLERANCE * self._target and not self._missed:
            self._missed = True
            log.warning(
                "round %d takes %d bytes, the target is %d: first messages to a client are whole, "
                "and masks and exact values cannot be rounded.", number, size, self._target
            )  # fmt: skip


def fitted(encoded: Callable[[Uniform], Payload], how: Uniform, budget: int) -> Payload:
    """A message of at most `budget` bytes, and nearly as many; the coarsest if none is as small."""
    low, high = math.log2(_FINEST), math.log2(_COARSEST)
    best = encoded(_with(how, _COARSEST))
    for _ in range(_TRIALS):
        middle = (low + high) / 2
        tried = encoded(_with(how, 2.0**middle))
        if len(tried.data) > budget:
            low = middle
        else:
            best, high = tried, middle
            if len(tried.data) >= (1 - NEAR) * budget:
                break
    return best


def _with(how: Uniform, step: float) -> Uniform:
    return replace(how, step=step, dither=how.dither and step <= DITHERED)
