"""LeNet and its relatives: two convolutions, each with 2x2 max-pooling, then linear layers.

All pool before the ReLU: max and ReLU commute, gradients included, and a quarter of the values
remains for the ReLU.
"""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedsieve.core.options import in_range
from fedsieve.models.zoo import shapes


@dataclass(frozen=True)
class Lenet5Caffe:
    """LeNet-5 of Caffe as in SpaFL: widths 20, 50, 500, valid 5x5 convolutions, no biases."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        image = shapes.image("lenet5_caffe", input_shape, smallest=16)
        return _conv_net(image, (20, 50), (500, num_outputs), bias=False)


@dataclass(frozen=True)
class Lenet5:
    """LeNet-5 with its first widths 6, 16, 120, 84, as in FLoPS: valid 5x5 convolutions, biases."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        image = shapes.image("lenet5", input_shape, smallest=16)
        return _conv_net(image, (6, 16), (120, 84, num_outputs))


@dataclass(frozen=True)
class Lenet5Wide:
    """The LeNet-5 of FedSparse: widths 32, 64, 512, dropout after conv2 and after fc1."""

    conv_dropout: float = 0.1
    fc_dropout: float = 0.3

    def __post_init__(self) -> None:
        in_range("model lenet5_wide: conv_dropout", self.conv_dropout, 0, 1)
        in_range("model lenet5_wide: fc_dropout", self.fc_dropout, 0, 1)

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        image = shapes.image("lenet5_wide", input_shape, smallest=16)
        dropout = {"relu2": self.conv_dropout, "relu3": self.fc_dropout}
        return _conv_net(image, (32, 64), (512, num_outputs), dropout=dropout)


@dataclass(frozen=True)
class Cifarnet:
    """CifarNet as in variational dropout: widths 64, 64, 384, 192, padded 5x5 convolutions."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        image = shapes.image("cifarnet", input_shape, smallest=4)
        return _conv_net(image, (64, 64), (384, 192, num_outputs), padding=2)


@dataclass(frozen=True)
class ConvSmall:
    """A net for images as small as 8x8 digits: widths 16, 32, 100, padded 3x3 convolutions."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        image = shapes.image("conv_small", input_shape, smallest=4)
        return _conv_net(image, (16, 32), (100, num_outputs), kernel=3, padding=1)


def _conv_net(
    image: tuple[int, int, int],
    conv: tuple[int, ...],
    fc: tuple[int, ...],
    *,
    kernel: int = 5,
    padding: int = 0,
    bias: bool = True,
    dropout: dict[str, float] | None = None,
) -> nn.Module:
    channels, height, width = image
    layers: OrderedDict[str, nn.Module] = OrderedDict()

    def relu(number: int) -> None:
        name = f"relu{number}"
        layers[name] = nn.ReLU()
        if dropout and dropout.get(name):
            layers[f"dropout{number}"] = nn.Dropout(dropout[name])

    for i, (inputs, outputs) in enumerate(pairwise((channels, *conv)), start=1):
        layers[f"conv{i}"] = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        relu(i)
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    layers["flatten"] = nn.Flatten()
    widths = (conv[-1] * height * width, *fc)
    for i, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layers[f"fc{i}"] = nn.Linear(inputs, outputs, bias=bias)
        if i < len(fc):
            relu(len(conv) + i)
    return nn.Sequential(layers)
