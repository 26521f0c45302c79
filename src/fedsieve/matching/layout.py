"""Models as chains of matchable layers: named tensors <-> [W0, b0, W1, b1, ...].

A convolution is a matrix whose rows are input channels times kernel positions, a linear layer
behind a flatten one whose rows are channels times map positions: blocks of rows that belong to one
sending channel. Pooling and activations leave channels where they are, so they need no notice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.message import Mask, Params
from fedsieve.matching.atoms import Network, subnetwork
from fedsieve.matching.costs import Floats, Ints


@dataclass(frozen=True)
class Layout:
    """The layers of a chain, input first."""

    layers: tuple[Layer, ...]

    @property
    def hidden(self) -> tuple[int, ...]:
        """Neurons or channels of each hidden layer."""
        return tuple(layer.shape[0] for layer in self.layers[:-1])

    @property
    def blocks(self) -> tuple[int, ...]:
        """Rows of each W that belong to one sending neuron; 1 for the inputs."""
        return (1, *(math.prod(x.shape[2:]) * x.repeat for x in self.layers[1:]))

    def network(self, params: Params) -> Network:
        """Named tensors as arrays; any hidden widths."""
        arrays = []
        for layer in self.layers:
            weight, bias = params[layer.weight], params[str(layer.bias)]
            arrays += [_array(weight.flatten(1).T), _array(bias)]
        return arrays

    def params(self, network: Sequence[Floats]) -> Params:
        """The inverse of `network`."""
        tensors: Params = {}
        pairs = zip(network[::2], network[1::2], strict=True)
        for layer, (weight, bias) in zip(self.layers, pairs, strict=True):
            kernel = layer.shape[2:]
            shaped = weight.T.reshape(len(bias), len(weight) // math.prod(kernel), *kernel)
            tensors[layer.weight] = torch.from_numpy(shaped.astype(np.float32, order="C"))
            tensors[str(layer.bias)] = torch.from_numpy(bias.astype(np.float32))
        return tensors

    def part(self, params: Params, labels: Sequence[Ints]) -> Params:
        """The neurons that `labels` name in each hidden layer, with the weights between them."""
        return self.params(subnetwork(self.network(params), labels, self.blocks))

    def used(self, params: Params) -> Mask | None:
        """As much of the model's own weights as narrower `params` have; None if all."""
        if all(params[x.weight].shape == x.shape for x in self.layers):
            return None
        mask = {x.weight: torch.zeros(x.shape, dtype=torch.bool) for x in self.layers}
        for name, whole in mask.items():
            rows, columns = params[name].shape[:2]
            whole[:rows, :columns] = True
        return mask


def layout_of(graph: LayerGraph, where: str) -> Layout:
    """The chain in a layer graph.

    Raises:
        ConfigError: layers do not follow one another in a single chain of linear or convolution
            layers with biases, or there is no hidden one.
    """
    layers = graph.layers
    reason = ""
    if graph.norms:
        reason = f"layer {graph.norms[0].name!r} normalises"
    elif odd := [x for x in layers if x.kind not in {"linear", "conv"}]:
        reason = f"layer {odd[0].name!r} is of kind {odd[0].kind!r}"
    elif bare := [x for x in layers if x.bias is None]:
        reason = f"layer {bare[0].name!r} has no bias"
    elif loose := [b for a, b in pairwise(layers) if b.source != a.target]:
        reason = f"layer {loose[0].name!r} does not read the layer before it alone"
    elif len(layers) < 2:
        reason = "it has no hidden layer"
    if reason:
        raise ConfigError(
            f"{where}: neurons are matched in chains of linear and convolution layers with biases, "
            f"but in this model {reason}. Use mlp, lenet5 or conv_small."
        )
    return Layout(layers)


def _array(tensor: torch.Tensor) -> Floats:
    return tensor.detach().numpy().astype(np.float64)
