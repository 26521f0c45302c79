"""The layer graph of a model: which tensors may be masked, which channels go together, MACs.

A *space* is a set of channels (the outputs of a layer, or several layers joined by additions) that
must be cut together. A *layer* reads one space and writes another; row i of its weight writes
channel i. With it "neuron", "filter" and "row" mean the same to every method, to the count of MACs
and to compaction.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Space:
    """Channels kept or cut together; `is_cuttable` is False where a cut would change outputs."""

    name: str
    size: int
    is_cuttable: bool


@dataclass(frozen=True)
class Layer:
    """One layer with a weight of shape (rows, columns, ...kernel); rows are target channels.

    `repeat` consecutive columns belong to one source channel (a flatten of h x w maps: h*w).
    `is_padded`: a border of zeros is read beside the source.
    "depthwise": row i reads and writes channel i of one space. "lstm": rows are the four gates one
    after another. "embedding": rows are tokens, columns the target channels.
    """

    name: str
    kind: Literal["linear", "conv", "depthwise", "lstm", "embedding"]
    weight: str
    bias: str | None
    shape: tuple[int, ...]
    source: str
    repeat: int
    target: str
    macs: int
    is_padded: bool = False


@dataclass(frozen=True)
class Norm:
    """A normalisation over a space; `mixes` where its statistics join several channels."""

    name: str
    tensors: tuple[str, ...]
    space: str
    mixes: bool


@dataclass(frozen=True)
class LayerGraph:
    """Layers in order of execution, normalisations and spaces of one model."""

    layers: tuple[Layer, ...]
    norms: tuple[Norm, ...]
    spaces: tuple[Space, ...]

    @cached_property
    def maskable(self) -> tuple[str, ...]:
        """Weight tensors a mask may cover: linear, convolution and LSTM weights."""
        return tuple(x.weight for x in self.layers if x.kind != "embedding")

    @cached_property
    def maskable_size(self) -> int:
        """How many weights a mask may cover."""
        return sum(math.prod(x.shape) for x in self.layers if x.kind != "embedding")

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of one forward pass of one example."""
        return sum(layer.macs for layer in self.layers)

    @cached_property
    def space(self) -> dict[str, Space]:
        """Spaces by name."""
        return {s.name: s for s in self.spaces}
