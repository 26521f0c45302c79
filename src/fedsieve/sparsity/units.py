"""What one gate opens: a single weight, or a whole channel with all that writes to it.

Gates, their logits and the choice of those kept are dicts of tensors: one entry for each tensor of
maskable weights or their biases (Weights), or one for each space of channels that can be cut
(Channels).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from fedsieve.core.errors import ConfigError
from fedsieve.core.graph import Layer, LayerGraph, Space
from fedsieve.core.message import Mask, Params
from fedsieve.core.options import name_of
from fedsieve.sparsity import masks

_TINY, _DEEP = 1e-12, 2


@dataclass(frozen=True)
class Weights:
    """A gate for each weight that may be masked, and for each bias beside such weights."""

    come_back: ClassVar[bool] = True  # weights set to 0 still have a gradient

    biases: bool = True

    def shapes(self, graph: LayerGraph) -> dict[str, tuple[int, ...]]:
        """Shapes of the gates."""
        shapes = dict[str, tuple[int, ...]]()
        for layer, _ in _layers(graph):
            shapes[layer.weight] = layer.shape
            if self.biases and layer.bias is not None:
                shapes[layer.bias] = layer.shape[:1]
        return shapes

    def size(self, graph: LayerGraph) -> int:
        """P: of how many numbers a density is the share kept."""
        return sum(math.prod(shape) for shape in self.shapes(graph).values())

    def least(self, graph: LayerGraph) -> int:
        """How many of them the smallest model has."""
        return 1

    def spread(self, graph: LayerGraph, gates: Params) -> Params:
        """What each gated tensor is multiplied by."""
        return gates

    def density(self, graph: LayerGraph, prob: Params) -> Tensor:
        """The expected share of the `size` numbers kept, if gates are open with these chances."""
        sums = [p.sum() for p in prob.values()]
        return (sums[0] if len(sums) == 1 else torch.stack(sums).sum()) / self.size(graph)

    def choose(self, graph: LayerGraph, effective: Params, kept: int) -> Mask:
        """The gates to keep, so that `kept` numbers remain: those of the largest ones."""
        return masks.top_k(effective, tuple(self.shapes(graph)), kept)

    def cover(self, graph: LayerGraph, chosen: Mask) -> Mask:
        """The numbers that remain if the chosen gates alone are open."""
        return chosen


@dataclass(frozen=True)
class Channels:
    """A gate for each channel that can be cut: its filters or rows, biases and normalisation.

    A weight remains if the channels it reads and writes both do, which is what compaction keeps.
    Densities are shares of the maskable weights.
    """

    come_back: ClassVar[bool] = False  # cut on both sides, a channel has no gradient

    def shapes(self, graph: LayerGraph) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {s.name: (s.size,) for s in _cuttable(graph)}
        if not shapes:
            raise ConfigError(
                "units=channels: the model has no channel that could be cut out. Use units=weights."
            )
        return shapes

    def size(self, graph: LayerGraph) -> int:
        return graph.maskable_size

    def least(self, graph: LayerGraph) -> int:
        return self._remaining(
            graph, {n: torch.arange(*s) < 1 for n, s in self.shapes(graph).items()}
        )

    def spread(self, graph: LayerGraph, gates: Params) -> Params:
        factors = {}
        for layer in graph.layers:
            if layer.target in gates:
                gate = gates[layer.target]
                factors[layer.weight] = gate.view(-1, *(1 for _ in layer.shape[1:]))
                if layer.bias is not None:
                    factors[layer.bias] = gate
        for norm in graph.norms:
            if norm.space in gates:
                factors |= dict.fromkeys(norm.tensors, gates[norm.space])
        return factors

    def density(self, graph: LayerGraph, prob: Params) -> Tensor:
        share = {name: p.mean() for name, p in prob.items()}
        one = torch.ones(())
        sums = [
            weights * share.get(layer.target, one) * share.get(_source(layer), one)
            for layer, weights in _layers(graph)
        ]
        return torch.stack(sums).sum() / graph.maskable_size

    def choose(self, graph: LayerGraph, effective: Params, kept: int) -> Mask:
        """As many of the strongest channels as fit; of every space at least the strongest."""
        strength = self._strength(graph, effective)
        order = torch.cat(list(strength.values())).argsort(descending=True, stable=True)
        low, high = 0, len(order)
        while low < high:  # the number of weights grows with the number of channels
            middle = (low + high + 1) // 2
            fits = self._remaining(graph, _first(strength, order[:middle])) <= kept
            low, high = (middle, high) if fits else (low, middle - 1)
        return _first(strength, order[:low])

    def cover(self, graph: LayerGraph, chosen: Mask) -> Mask:
        covered = {}
        for layer, _ in _layers(graph):
            mask = torch.ones(layer.shape, dtype=torch.bool)
            flat = mask.view(*layer.shape[:2], -1)
            if layer.target in chosen:
                flat &= chosen[layer.target][:, None, None]
            if _source(layer) in chosen:
                flat &= chosen[layer.source].repeat_interleave(layer.repeat)[None, :, None]
            covered[layer.weight] = mask
        return covered

    def _strength(self, graph: LayerGraph, effective: Params) -> Params:
        """Root mean square of the weights that write to each channel."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.shapes(graph)}
        for layer in graph.layers:
            if layer.target in parts:
                parts[layer.target].append(effective[layer.weight].detach().flatten(1))
        return {n: torch.cat(rows, 1).square().mean(1).sqrt() for n, rows in parts.items()}

    def _remaining(self, graph: LayerGraph, chosen: Mask) -> int:
        share = {name: c.double() for name, c in chosen.items()}
        return round(self.density(graph, share).item() * graph.maskable_size)


Units: TypeAlias = Weights | Channels


def budget(units: Units, graph: LayerGraph, density: float) -> int:
    """`m = floor(density P)`: how many numbers are kept.

    Raises:
        ConfigError: no model has so few weights.
    """
    size, least = units.size(graph), units.least(graph)
    kept = masks.count_at(density, size)
    if kept < least:
        raise ConfigError(
            f"target_density={density}: {kept} of {size} weights, but the smallest model with "
            f"units={name_of(type(units))} has {least}. Ask for {1.001 * least / size:.3g} or more."
        )
    return kept


def level(graph: LayerGraph, weights: Params) -> Params:
    """In a deep net, every tensor divided by its root mean square.

    The largest of all initial weights would leave out whole layers, those with many inputs: a deep
    net that starts without one has no gradient.
    """
    if len(graph.layers) < _DEEP:
        return weights
    return {n: w / w.square().mean().sqrt().clamp(min=_TINY) for n, w in weights.items()}


def regrown(graph: LayerGraph, weights: Params, left: Params) -> Params:
    """In a deep net, every tensor scaled so that what is `left` of it has the norm of the whole.

    Otherwise signals fade from layer to layer of a sparse start.
    """
    if len(graph.layers) < _DEEP:
        return weights
    return {
        n: w * (w.norm() / norm) if (norm := left[n].norm()) > 0 else w for n, w in weights.items()
    }


def _layers(graph: LayerGraph) -> list[tuple[Layer, int]]:
    """Layers with a maskable weight, and its size."""
    return [(x, math.prod(x.shape)) for x in graph.layers if x.weight in graph.maskable]


def _cuttable(graph: LayerGraph) -> list[Space]:
    return [s for s in graph.spaces if s.is_cuttable]


def _source(layer: Layer) -> str:
    """The space a layer reads; none for a depthwise one, whose rows stand for it already."""
    return "" if layer.kind == "depthwise" else layer.source


def _first(strength: Params, order: Tensor) -> Mask:
    """The channels at these places of all spaces in a row, and the strongest of each space."""
    flat = torch.zeros(sum(len(s) for s in strength.values()), dtype=torch.bool)
    flat[order] = True
    parts = torch.split(flat, [len(s) for s in strength.values()])
    chosen = {name: part.clone() for name, part in zip(strength, parts, strict=True)}
    for name, part in chosen.items():
        part[strength[name].argmax()] = True
    return chosen
