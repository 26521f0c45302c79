"""Masks: one boolean tensor per maskable parameter, True where the weight is kept."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsieve.core.message import Mask, Params, count_nonzero

_SAMPLE, _MARGIN = 4096, 256  # values of a sample, and how far its quantiles may be off


def top_k(params: Params, names: tuple[str, ...], kept: int) -> Mask:
    """Keep exactly the `kept` largest magnitudes over all tensors in `names`; ties to the first."""
    chosen = largest(torch.cat([params[n].detach().reshape(-1).abs() for n in names]), kept)
    parts = torch.split(chosen, [params[n].numel() for n in names])
    return {n: part.view(params[n].shape) for n, part in zip(names, parts, strict=True)}


def largest(score: Tensor, kept: int) -> Tensor:
    """Where the `kept` largest of a vector are; of equal ones the first."""
    if kept >= len(score):
        return torch.ones_like(score, dtype=torch.bool)
    if kept <= 0:
        return torch.zeros_like(score, dtype=torch.bool)
    smallest = _kth_largest(score.numpy(), kept)
    chosen = score > smallest
    chosen[(score == smallest).nonzero()[: kept - count_nonzero(chosen), 0]] = True
    return chosen


def _kth_largest(size: np.ndarray[Any, np.dtype[np.float32]], kept: int) -> float:
    """The smallest of the `kept` largest, looked for between two quantiles of a sample.

    Where the sample misleads, among all; either way the answer is exact.
    """
    stride = len(size) // _SAMPLE
    if stride > 1:
        sample = np.sort(size[::stride])
        place = len(sample) - round(kept / stride)
        low = sample[max(place - _MARGIN, 0)]
        high = sample[place + _MARGIN] if place + _MARGIN < len(sample) else np.inf
        above, band = int(np.count_nonzero(size > high)), size[(size > low) & (size <= high)]
        left = kept - above
        if len(band) < left <= np.count_nonzero(size >= low) - above:
            return float(low)  # many are equal, mostly 0, with which partition is slow
        if 0 < left <= len(band):
            size, kept = band, left
    place = len(size) - kept
    return float(np.partition(size, place)[place])  # ten times faster than torch.kthvalue


def count_at(density: float, size: int) -> int:
    """floor(density * size), but 0.29 of 100, a hair below 29 in binary, is 29."""
    return math.floor(density * size + 1e-9)


def nonzero(params: Params, names: tuple[str, ...]) -> Mask:
    """True where a weight is not 0."""
    return {name: params[name] != 0 for name in names}


def apply(params: Params, mask: Mask) -> Params:
    """The parameters with masked-out values set to 0; tensors without a mask pass as they are.

    Values keep their memory layout, which convolutions are faster with, whatever the masks' is.
    """
    return {
        n: torch.where(_laid_like(v, mask[n]), v, 0) if n in mask else v for n, v in params.items()
    }


def votes(given: Sequence[Mask]) -> dict[str, Tensor]:
    """For each coordinate, how many of the masks keep it."""
    names = given[0] if given else ()
    return {n: torch.stack([mask[n] for mask in given]).sum(0, dtype=torch.int32) for n in names}


def completed(mask: Mask, params: Params) -> Mask:
    """The mask with a bit for each of these values and for no others; new ones are kept."""
    return {
        n: mask[n].expand_as(x) if n in mask else torch.ones_like(x, dtype=torch.bool)
        for n, x in params.items()
    }


def _laid_like(value: Tensor, mask: Tensor) -> Tensor:
    same = mask.stride() == value.stride()
    return mask if same else torch.empty_like(value, dtype=torch.bool).copy_(mask)


def density(mask: Mask) -> float:
    """Share of coordinates kept."""
    total = sum(m.numel() for m in mask.values())
    return sum(count_nonzero(m) for m in mask.values()) / total if total else 1.0
