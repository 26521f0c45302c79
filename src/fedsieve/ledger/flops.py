"""FLOPs of training, counted as multiply-accumulates: 3 forward passes' worth per example.

One is the forward pass, one the gradient with respect to inputs and one with respect to weights.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedsieve.core.cut import alive_channels
from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.message import Mask, Params


class Flops(NamedTuple):
    """What training cost: with all weights, without masked ones, without channels cut out.

    `ideal` counts every masked weight as saved, which no ordinary hardware does; `realisable` only
    whole channels that can be removed.
    """

    dense: int
    ideal: int
    realisable: int


def flops(graph: LayerGraph, processed: int, mask: Mask | None) -> Flops:
    """FLOPs of training steps over `processed` examples with weights outside `mask` zero."""
    passes = 3 * processed
    dense = passes * graph.macs
    if mask is None:
        return Flops(dense, dense, dense)
    alive = {name: _count(kept) for name, kept in alive_channels(graph, mask).items()}
    ideal = realisable = 0
    for layer in graph.layers:
        # Every weight is used equally often: once per position of the output.
        positions = layer.macs // math.prod(layer.shape)
        kept = mask.get(layer.weight)
        ideal += layer.macs if kept is None else positions * _count(kept)
        realisable += positions * _remaining(graph, layer, alive)
    return Flops(dense, passes * ideal, passes * realisable)


def layer_density(params: Params, graph: LayerGraph) -> dict[str, float]:
    """The share of non-zeros in each tensor that a mask may cover."""
    # Counting booleans is many times faster than counting non-zero floats.
    return {n: _count(params[n] != 0) / params[n].numel() for n in graph.maskable}


def density(params: Params, graph: LayerGraph) -> float:
    """The share of non-zeros in all of them together."""
    return overall(layer_density(params, graph), graph)


def mean_density(models: list[dict[str, float]]) -> dict[str, float]:
    """The mean over models of what `layer_density` says of each."""
    return {n: sum(m[n] for m in models) / len(models) for n in (models[0] if models else ())}


def overall(shares: dict[str, float], graph: LayerGraph) -> float:
    """The share in all tensors together from the share in each."""
    sizes = {x.weight: math.prod(x.shape) for x in graph.layers}
    total = sum(sizes[name] for name in shares)
    return sum(share * sizes[name] for name, share in shares.items()) / total if total else 1.0


def _remaining(graph: LayerGraph, layer: Layer, alive: dict[str, int]) -> int:
    """Weights of `layer` between channels that stay."""
    if layer.kind == "embedding":
        return math.prod(layer.shape)
    rows, columns, *kernel = layer.shape
    if layer.kind != "depthwise":
        columns = columns * alive[layer.source] // graph.space[layer.source].size
    return (
        rows * alive[layer.target] // graph.space[layer.target].size * columns * math.prod(kernel)
    )


def _count(tensor: Tensor) -> int:
    return int(torch.count_nonzero(tensor))
