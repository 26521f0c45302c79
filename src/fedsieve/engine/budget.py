"""Messages of a given size: steps are chosen so that a round takes the bytes asked for.

Broadcasts get at most half, on the finest lattice that fits; clients share what is left, each with
uniform steps found by trial. Large steps make most values 0, so density and bits are chosen as one;
they are taken without dither, whose noise grows with the step.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fedsieve.wire.compressors.uniform import Uniform
from fedsieve.wire.frame import Payload

DOWN_SHARE = 0.5
UP_LEAST = 0.25  # for clients, where broadcasts alone take too much: the first ones are whole
DITHERED = 3.0  # the largest step with dither
STEPS = tuple(2.0**k for k in range(-3, 4))  # of lattices tried, finest first
NEAR = 0.005  # of a budget that a message may stay below it
_TRIALS, _FINEST, _COARSEST = 14, 2.0**-12, 2.0**12

T = TypeVar("T")


def finest(encoded: Callable[[float], T], size: Callable[[T], int], budget: float) -> T:
    """What the smallest step that keeps to `budget` bytes gives; if none does, the largest."""
    for step in STEPS:
        tried = encoded(step)
        if size(tried) <= budget:
            return tried
    return tried


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
