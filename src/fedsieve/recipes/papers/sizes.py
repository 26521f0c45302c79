"""Sizes of the papers' models and messages, counted on the models themselves."""

import math
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

import torch
from torch import nn

from fedsieve.core.keys import fold
from fedsieve.core.method import AnyMethod, message_to
from fedsieve.methods.fedavg import FedAvg
from fedsieve.methods.fediter_ht import FedIterHT
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model

GREY28, COLOUR32 = (1, 28, 28), (3, 32, 32)
_KEY = fold(0, "sizes")


@dataclass(frozen=True)
class Sizes:
    """What there is to count in one model."""

    task: ModelTask
    counters: int  # batch counters of BatchNorm, one value each, which our messages leave out

    @property
    def trainable(self) -> int:
        """All values that have a gradient."""
        params = self.task.init_params(_KEY)
        return sum(t.numel() for n, t in params.items() if n not in self.task.buffers)

    def of(self, *names: str) -> int:
        """Values of the named tensors."""
        params = self.task.init_params(_KEY)
        return sum(params[name].numel() for name in names)

    def weights(self, *kinds: str) -> int:
        """Weights of the layers of these kinds."""
        return sum(math.prod(x.shape) for x in self.task.graph.layers if x.kind in kinds)

    def rows(self, *kinds: str) -> int:
        """Rows of these layers (filters, neurons, LSTM gates): one SpaFL threshold for each."""
        layers = self.task.graph.layers
        return sum(x.shape[0] for x in layers if not kinds or x.kind in kinds)

    def fedavg_values(self) -> int:
        """Values in one message of FedAvg, statistics of BatchNorm included."""
        return _message_values(FedAvg(task=self.task))

    def fediter_ht_values(self, density: float) -> int:
        """Values in one message of FedIter-HT: the weights kept, and all biases."""
        return _message_values(FedIterHT(task=self.task, target_density=density))


@cache
def sizes(model: str, input_shape: tuple[int, ...], num_outputs: int) -> Sizes:
    """The sizes of an architecture for given inputs and outputs."""
    architecture = read_model(model)
    layers = architecture.build(input_shape, num_outputs).modules()
    counters = sum(isinstance(x, nn.BatchNorm1d | nn.BatchNorm2d) for x in layers)
    task = ModelTask(lambda: architecture.build(input_shape, num_outputs), "classes", input_shape)
    return Sizes(task, counters)


@cache
def trainable(model: str, input_shape: tuple[int, ...], num_outputs: int) -> int:
    """All values of an architecture that have a gradient, counted without making any."""
    with torch.device("meta"):
        module = read_model(model).build(input_shape, num_outputs)
    return sum(parameter.numel() for parameter in module.parameters())


def gbit(values: int | Decimal) -> Decimal:
    """32-bit values in 10^9 bit."""
    return Decimal(32) * values / 10**9


def gib(values: int | Decimal) -> Decimal:
    """4-byte values in 2^30 bytes."""
    return Decimal(4) * values / 2**30


def _message_values(method: AnyMethod) -> int:
    """Values in a method's broadcast, by its own paper_bytes."""
    down = message_to(0, method.broadcast(method.init_server(_KEY), _KEY))
    return method.paper_bytes(down) // 4
