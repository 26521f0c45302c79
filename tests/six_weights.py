"""One layer of six weights with a quadratic loss, for rules that tests work out by hand."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedsieve.core.graph import Layer, LayerGraph, Space
from fedsieve.core.keys import Key
from fedsieve.core.message import Mask, Params
from fedsieve.core.method import Batch
from fedsieve.optim.schedules import Constant

TARGET = torch.tensor([[4.0, 1.0, 0.0, 8.0, -6.0, 0.5]])
PLAIN: dict[str, Any] = {"lr": 0.5, "clip_norm": None, "schedule": Constant()}


def task() -> Any:
    """Its loss is half the squared distance to TARGET: the gradient is w - TARGET."""
    layer = Layer("fc", "linear", "w", None, (1, 6), "in", 1, "out", 6)
    spaces = (Space("in", 6, is_cuttable=False), Space("out", 1, is_cuttable=False))

    def loss(weights: Params, batch: Batch, key: Key) -> Tensor:
        return (weights["w"] - TARGET).square().sum() / 2

    def init_params(key: Key) -> Params:
        return {"w": torch.arange(1.0, 7.0).view(1, 6)}

    graph = LayerGraph((layer,), (), spaces)
    return SimpleNamespace(graph=graph, buffers=frozenset(), loss=loss, init_params=init_params)


def bits(*kept: int) -> Mask:
    return {"w": torch.tensor([[i in kept for i in range(6)]])}


def values(*of: float) -> Params:
    return {"w": torch.tensor([of])}


def data(steps: int = 1, epochs: int = 1) -> Any:
    """A client with two examples that takes so many steps in a round."""
    batch = Batch(torch.zeros(2, 1), torch.zeros(2))
    return SimpleNamespace(
        work=lambda key: iter([batch] * steps), draw=lambda key: batch, epochs=epochs, examples=2
    )
