"""All architectures by name: `read_model("resnet18(width=32)").build((3, 32, 32), 10)`."""

from typing import Protocol

from torch import nn

from fedsieve.core import options
from fedsieve.models.zoo.cnn7 import Cnn7
from fedsieve.models.zoo.lenet import Cifarnet, ConvSmall, Lenet5, Lenet5Caffe, Lenet5Wide
from fedsieve.models.zoo.linear import Linear, Mlp
from fedsieve.models.zoo.lstm import Lstm
from fedsieve.models.zoo.resnet import Resnet8, Resnet18, Resnet20Gn
from fedsieve.models.zoo.vgg import VggLike


class Architecture(Protocol):
    """A frozen dataclass of options that builds a module."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """A freshly initialised module for inputs of `input_shape` (without the batch axis).

        Raises:
            ModelError: the architecture cannot take such inputs; says what it needs.
        """


MODELS: tuple[type[Architecture], ...] = (
    Linear,
    Mlp,
    Lenet5,
    Lenet5Caffe,
    Lenet5Wide,
    ConvSmall,
    Cifarnet,
    Cnn7,
    Resnet8,
    Resnet18,
    Resnet20Gn,
    VggLike,
    Lstm,
)


def read_model(text: str) -> Architecture:
    """The architecture spelled `name` or `name(option=value)`; ConfigError if there is none."""
    return options.read(text, MODELS, "model")
