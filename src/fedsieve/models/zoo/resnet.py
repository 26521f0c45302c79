"""Residual networks: ResNet-8 and ResNet-18 of SpaFL, ResNet-20 with GroupNorm of FedSparse."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from fedsieve.core.options import in_range
from fedsieve.models.zoo import shapes


@dataclass(frozen=True)
class Resnet8:
    """One pre-activation block each of 16, 32 and 64 channels (WRN-10-1), final BatchNorm.

    The last layer has its bias, as in the count of SpaFL's baselines, also where it is masked.
    """

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        channels, _, _ = shapes.image("resnet8", input_shape, smallest=8)
        layers: OrderedDict[str, nn.Module] = OrderedDict(conv=_conv3x3(channels, 16))
        layers |= _stages(PreActivation, 16, (16, 32, 64), blocks=1)
        layers |= {"norm": nn.BatchNorm2d(64), "relu": nn.ReLU()}
        return nn.Sequential(layers | _head(64, num_outputs))


@dataclass(frozen=True)
class Resnet18:
    """Two pre-activation blocks each of w, 2w, 4w and 8w channels for w = `width`."""

    width: int = 64

    def __post_init__(self) -> None:
        in_range("model resnet18: width", self.width, 1)

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        channels, _, _ = shapes.image("resnet18", input_shape, smallest=8)
        w = self.width
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=_conv3x3(channels, w), norm=nn.BatchNorm2d(w), relu=nn.ReLU()
        )
        layers |= _stages(PreActivation, w, (w, 2 * w, 4 * w, 8 * w), blocks=2)
        return nn.Sequential(layers | _head(8 * w, num_outputs))


@dataclass(frozen=True)
class Resnet20Gn:
    """Three blocks each of 16, 32 and 64 channels, parameter-free shortcuts, GroupNorm."""

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        channels, _, _ = shapes.image("resnet20_gn", input_shape, smallest=4)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=_conv3x3(channels, 16), norm=nn.GroupNorm(2, 16), relu=nn.ReLU()
        )
        layers |= _stages(PaddedShortcut, 16, (16, 32, 64), blocks=3)
        return nn.Sequential(layers | _head(64, num_outputs))


class PreActivation(nn.Module):
    """BN-ReLU-conv twice; where widths differ, the shortcut is a 1x1 convolution after BN-ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        )

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.norm1(x))
        skip: Tensor = x if self.shortcut is None else self.shortcut(active)
        y: Tensor = self.conv2(relu(self.norm2(self.conv1(active))))
        return skip + y


class PaddedShortcut(nn.Module):
    """conv-GN-ReLU-conv-GN, added to the input: subsampled and zero-padded where widths differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.GroupNorm(2, outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = nn.GroupNorm(2, outputs)
        self.stride = stride
        self.padding = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        if self.padding:
            before = self.padding // 2
            x = x[:, :, :: self.stride, :: self.stride]
            x = pad(x, (0, 0, 0, 0, before, self.padding - before))
        return relu(x + y)


def _stages(
    block: type[PreActivation | PaddedShortcut], inputs: int, widths: tuple[int, ...], blocks: int
) -> dict[str, nn.Module]:
    """`blocks` blocks of each width; the image is halved where the width grows."""

    def each() -> Iterator[nn.Module]:
        for before, width in pairwise((inputs, *widths)):
            yield block(before, width, 1 if before == width else 2)
            yield from (block(width, width, 1) for _ in range(blocks - 1))

    return {f"block{i}": module for i, module in enumerate(each(), start=1)}


def _head(channels: int, num_outputs: int) -> dict[str, nn.Module]:
    return {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(channels, num_outputs),
    }


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
