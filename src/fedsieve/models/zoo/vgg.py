"""VGG-like network of the variational-dropout paper: VGG-16's convolutions and one linear layer."""

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedsieve.core.options import in_range
from fedsieve.models.zoo import shapes


@dataclass(frozen=True)
class VggLike:
    """Thirteen 3x3 convolutions of w, 2w, 4w and 8w channels, each with BatchNorm, w = `width`."""

    width: int = 64

    def __post_init__(self) -> None:
        in_range("model vgg_like: width", self.width, 1)

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        channels, height, width = shapes.image("vgg_like", input_shape, smallest=32)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for stage, (factor, convs) in enumerate(((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)), start=1):
            outputs = factor * self.width
            for i in range(1, convs + 1):
                layers[f"conv{stage}_{i}"] = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
                layers[f"norm{stage}_{i}"] = nn.BatchNorm2d(outputs)
                if i == convs:
                    layers[f"pool{stage}"] = nn.MaxPool2d(2)
                layers[f"relu{stage}_{i}"] = nn.ReLU()
                channels = outputs
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(channels * (height // 32) * (width // 32), num_outputs)
        return nn.Sequential(layers)
