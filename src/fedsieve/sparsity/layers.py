"""Sparsity layer by layer: how many weights each keeps, what is dropped, what grows.

Shares of layers and the overlap mean are those of specification rivals, section 1.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch

from fedsieve.core import keys
from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Mask, Params, count_nonzero
from fedsieve.sparsity import masks

Allocation: TypeAlias = Literal["uniform", "erk", "erk_feddst"]
Counts: TypeAlias = dict[str, int]


def allocate(graph: LayerGraph, density: float, allocation: Allocation) -> Counts:
    """How many weights of each maskable tensor are kept, at least one.

    "uniform": the same share of every layer. "erk" (Evci et al. 2020): density in proportion to
    (sum of the shape) / (its product), layers that would need more than all are dense.
    "erk_feddst" (Bibikar et al. 2022): sparsity in proportion to 1 - (sum) / (product).
    """
    layers = [layer for layer in graph.layers if layer.weight in graph.maskable]
    sizes = {layer.weight: math.prod(layer.shape) for layer in layers}
    ratios = {x.weight: min(sum(x.shape) / sizes[x.weight], 1.0) for x in layers}
    if allocation == "erk":
        shares = _capped(ratios, sizes, density)
    elif allocation == "erk_feddst":
        sparse = _capped({n: 1 - ratio for n, ratio in ratios.items()}, sizes, 1 - density)
        shares = {name: 1 - share for name, share in sparse.items()}
    else:
        shares = dict.fromkeys(sizes, density)
    return {n: max(masks.count_at(shares[n], size), 1) for n, size in sizes.items()}


def largest(scores: Params, counts: Mapping[str, int]) -> Mask:
    """In each layer the coordinates of the largest absolute scores."""
    return {
        name: masks.largest(scores[name].detach().abs().reshape(-1), kept).view_as(scores[name])
        for name, kept in counts.items()
    }


def draw(graph: LayerGraph, counts: Mapping[str, int], key: Key) -> Mask:
    """In each layer as many coordinates as asked, drawn at random."""
    drawn = {}
    for layer in graph.layers:
        if layer.weight in counts:
            drawn[layer.weight] = _drawn(layer, counts[layer.weight], fold(key, layer.weight))
    return drawn


def dropped(weights: Params, mask: Mask, counts: Mapping[str, int]) -> Mask:
    """The mask without so many of the smallest kept weights of each layer."""
    left = {}
    for name, bits in mask.items():
        score = torch.where(bits, weights[name].detach().abs(), -1).reshape(-1)
        kept = count_nonzero(bits) - counts[name]
        left[name] = masks.largest(score, kept).view_as(bits)
    return left


def pruned(weights: Params, mask: Mask, share: float, least: float = 0.0) -> Mask:
    """The mask without a `share` of each layer's kept weights, the smallest.

    A layer keeps a density of `least` and one weight, if it has them.
    """
    counts = {}
    for name, kept in sizes(mask).items():
        left = max(masks.count_at(least, mask[name].numel()), masks.count_at(1 - share, kept), 1)
        counts[name] = max(kept - left, 0)
    return dropped(weights, mask, counts)


def grown(scores: Params, mask: Mask, counts: Mapping[str, int]) -> Mask:
    """The mask with so many more of each layer, those of the largest scores outside it."""
    more = {}
    for name, bits in mask.items():
        score = torch.where(bits, -1, scores[name].detach().abs()).reshape(-1)
        free = bits.numel() - count_nonzero(bits)
        more[name] = bits | masks.largest(score, min(counts[name], free)).view_as(bits)
    return more


def sizes(mask: Mask) -> Counts:
    """How many weights a mask keeps of each layer."""
    return {name: count_nonzero(bits) for name, bits in mask.items()}


class Part(NamedTuple):
    """A client's weights, those it holds, and how much it counts."""

    weights: Params
    mask: Mask
    share: float


def overlap_mean(parts: Iterable[Part], otherwise: Params) -> Params:
    """Each weight's mean over the clients that hold it; as in `otherwise` where nobody does.

    Tensors without a mask are held by all.
    """
    total = {name: torch.zeros_like(value) for name, value in otherwise.items()}
    held = {name: torch.zeros_like(value) for name, value in otherwise.items()}
    for weights, mask, share in parts:
        for name, value in weights.items():
            bits = mask[name] if name in mask else torch.ones((), dtype=torch.bool)
            total[name] += torch.where(bits, value, 0) * share
            held[name] += bits * share
    return {
        name: torch.where(held[name] > 0, total[name] / held[name].where(held[name] > 0, 1), old)
        for name, old in otherwise.items()
    }


def _capped(
    weights: Mapping[str, float], sizes: Mapping[str, int], share: float
) -> dict[str, float]:
    """Shares in proportion to `weights` that keep `share` of all; none above 1."""
    wanted, free = share * sum(sizes.values()), set(sizes)
    while True:
        taken = sum(size for name, size in sizes.items() if name not in free)
        scale = sum(weights[name] * sizes[name] for name in free)
        factor = (wanted - taken) / scale if scale else 0.0
        over = {name for name in free if factor * weights[name] > 1}
        if not over:
            return {n: factor * weights[n] if n in free else 1.0 for n in sizes}
        free -= over


def _drawn(layer: Layer, kept: int, key: Key) -> torch.Tensor:
    flat = torch.zeros(math.prod(layer.shape), dtype=torch.bool)
    flat[keys.sample(key, len(flat), kept)] = True
    return flat.view(layer.shape)
