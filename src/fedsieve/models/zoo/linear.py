"""Linear models and multi-layer perceptrons; inputs of any shape are flattened."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedsieve.core.options import in_range


@dataclass(frozen=True)
class Linear:
    """One linear map; without a bias, as in the regression and RCV1 tables of FLoPS."""

    bias: bool = False

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers = _flattened(input_shape)
        layers["fc"] = nn.Linear(math.prod(input_shape), num_outputs, bias=self.bias)
        return nn.Sequential(layers)


@dataclass(frozen=True)
class Mlp:
    """Hidden layers of the given widths with ReLU, all with biases."""

    hidden: tuple[int, ...] = (100,)

    def __post_init__(self) -> None:
        for width in self.hidden:
            in_range("model mlp: hidden", width, 1)

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers = _flattened(input_shape)
        widths = (math.prod(input_shape), *self.hidden, num_outputs)
        for i, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            layers[f"fc{i}"] = nn.Linear(inputs, outputs)
            layers[f"relu{i}"] = nn.ReLU()
        layers.popitem()
        return nn.Sequential(layers)


def _flattened(input_shape: tuple[int, ...]) -> OrderedDict[str, nn.Module]:
    return OrderedDict(flatten=nn.Flatten()) if len(input_shape) > 1 else OrderedDict()
