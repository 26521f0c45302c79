"""CNN-7 of SpaFL: four convolutions and three linear layers, with BatchNorm between them."""

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedsieve.models.zoo import shapes


@dataclass(frozen=True)
class Cnn7:
    """Valid 5x5 convolutions 64, 64, pool, 128, 128, pool, then 128, 128, outputs; no biases."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        channels, height, width = shapes.image("cnn7", input_shape, smallest=28)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, outputs in enumerate((64, 64, 128, 128), start=1):
            layers[f"conv{i}"] = nn.Conv2d(channels, outputs, 5, bias=False)
            layers[f"norm{i}"] = nn.BatchNorm2d(outputs)
            if i % 2 == 0:
                layers[f"pool{i}"] = nn.MaxPool2d(2)
            layers[f"relu{i}"] = nn.ReLU()
            channels = outputs
        height, width = (((side - 8) // 2 - 8) // 2 for side in (height, width))
        layers["flatten"] = nn.Flatten()
        inputs = channels * height * width
        for i in (5, 6):
            layers[f"fc{i}"] = nn.Linear(inputs, 128, bias=False)
            layers[f"norm{i}"] = nn.BatchNorm1d(128)
            layers[f"relu{i}"] = nn.ReLU()
            inputs = 128
        layers["fc7"] = nn.Linear(inputs, num_outputs, bias=False)
        return nn.Sequential(layers)
