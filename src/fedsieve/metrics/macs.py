"""Multiply-accumulates (MACs) of training: those of 3 forward passes for each example.

One is the forward pass, one the gradient with respect to inputs and one with respect to weights.
"""

import math
from typing import NamedTuple

from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.message import Mask, Params, count_nonzero
from fedsieve.sparsity.compaction import alive_channels


class Macs(NamedTuple):
    """MACs of training: with all weights, without masked ones, without channels cut out.

    `ideal` counts every masked weight as saved, which no ordinary hardware does; `realisable` only
    whole channels that can be removed.
    """

    dense: int
    ideal: int
    realisable: int


def training_macs(
    graph: LayerGraph, processed: int, mask: Mask | None, dense_gradients: int = 0
) -> Macs:
    """MACs of training steps over `processed` examples with weights outside `mask` zero.

    For `dense_gradients` of them the third pass, the gradient of weights, is over all weights.
    """
    passes = 3 * processed
    dense = passes * graph.macs
    if mask is None:
        return Macs(dense, dense, dense)
    alive = {name: count_nonzero(kept) for name, kept in alive_channels(graph, mask).items()}
    ideal = realisable = 0
    for layer in graph.layers:
        # Every weight is used equally often: once per position of the output.
        positions = layer.macs // math.prod(layer.shape)
        kept = mask.get(layer.weight)
        ideal += layer.macs if kept is None else positions * count_nonzero(kept)
        realisable += positions * _remaining(graph, layer, alive)
    sparse = passes - dense_gradients
    more = dense_gradients * graph.macs
    return Macs(dense, sparse * ideal + more, sparse * realisable + more)


class Size(NamedTuple):
    """Of a model: values of all its tensors, and MACs of one forward pass of one example."""

    values: int
    macs: int


def size(graph: LayerGraph, params: Params) -> Size:
    """The size of a model of this graph whose tensors may have been cut down."""
    macs = sum(x.macs // math.prod(x.shape) * params[x.weight].numel() for x in graph.layers)
    return Size(sum(value.numel() for value in params.values()), macs)


def density(params: Params, graph: LayerGraph) -> float:
    """The share of non-zeros in all tensors that a mask may cover."""
    weights = [params[name] for name in graph.maskable]
    return sum(count_nonzero(w) for w in weights) / sum(w.numel() for w in weights)


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
