"""Which channels a mask leaves in use: what compaction may cut out and the ledger may count."""

import torch
from torch import Tensor

from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.message import Mask


def alive_channels(graph: LayerGraph, mask: Mask) -> dict[str, Tensor]:
    """For each space, which channels must stay; those of a space that cannot be cut all do.

    A channel is dead if no kept weight reads it, or if no kept weight writes it and neither a bias
    nor a normalisation can make it non-zero. Weights from and to dead channels count as not kept,
    again until nothing changes. Tensors that `mask` does not name are kept whole.
    """
    # 0 and 1 as floats: a product of matrix and vector counts links many times faster than `any`.
    alive = {s.name: torch.ones(s.size) for s in graph.spaces}
    cuttable = {s.name for s in graph.spaces if s.is_cuttable}
    # A depthwise convolution maps channel i to itself: it neither writes to nor reads for another.
    links = [
        (layer, _links(graph, layer, mask))
        for layer in graph.layers
        if layer.kind != "depthwise" and not cuttable.isdisjoint((layer.source, layer.target))
    ]
    shifted = _shifted(graph, mask)
    is_changing = True
    while is_changing:
        read = {name: torch.zeros_like(alive[name]) for name in cuttable}
        written = {name: shifted[name].clone() for name in cuttable}
        for layer, link in links:
            if layer.source in cuttable:
                read[layer.source] += alive[layer.target] @ link
            if layer.target in cuttable:
                written[layer.target] += link @ alive[layer.source]
        left = {name: alive[name] * (read[name] > 0) * (written[name] > 0) for name in cuttable}
        is_changing = any(not torch.equal(left[name], alive[name]) for name in cuttable)
        alive |= left
    return {name: kept > 0 for name, kept in alive.items()}


def _links(graph: LayerGraph, layer: Layer, mask: Mask) -> Tensor:
    """(rows, source channels): whether any weight between the two is kept."""
    rows, size = layer.shape[0], graph.space[layer.source].size
    if layer.weight not in mask:
        return torch.ones(rows, size)
    return mask[layer.weight].view(torch.uint8).reshape(rows, size, -1).amax(-1).float()


def _shifted(graph: LayerGraph, mask: Mask) -> dict[str, Tensor]:
    """For each space, which channels a bias or a normalisation can make non-zero."""
    shifted = {s.name: torch.zeros(s.size) for s in graph.spaces}
    for layer in graph.layers:
        if layer.bias is not None:
            shifted[layer.target] += mask.get(layer.bias, torch.tensor(data=True))
    for norm in graph.norms:
        shifted[norm.space] += 1
    return shifted
