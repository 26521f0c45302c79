"""LSTM classifiers: over the rows of an image, over feature vectors, or over characters."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsieve.core.errors import ModelError
from fedsieve.core.options import in_range


@dataclass(frozen=True)
class Lstm:
    """LSTM layers without biases and a linear layer on the last state.

    Inputs of shape (channels, height, width) are read row by row, (steps, features) step by step,
    and (steps,) as tokens through an embedding; the outputs then predict the next token, so there
    are as many tokens as outputs.
    """

    hidden: int = 128
    layers: int = 2
    embedding: int = 8

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "embedding"):
            in_range(f"model lstm: {name}", getattr(self, name), 1)

    def build(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        match input_shape:
            case (channels, _, width):
                layers["rows"] = Rows()
                features = channels * width
            case (_, features):
                pass
            case (_,):
                layers["embedding"] = nn.Embedding(num_outputs, self.embedding)
                features = self.embedding
            case _:
                raise ModelError(
                    "model lstm needs inputs of shape (channels, height, width), (steps, features) "
                    f"or (steps,), but they have shape {input_shape}."
                )
        layers["lstm"] = StackedLstm(features, self.hidden, self.layers)
        layers["fc"] = nn.Linear(self.hidden, num_outputs)
        return nn.Sequential(layers)


class Rows(nn.Module):
    """(batch, channels, height, width) -> (batch, height, channels * width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


class StackedLstm(nn.Module):
    """The last state of the top layer; weights are those of nn.LSTM(bias=False).

    nn.LSTM keeps its own list of weights and would not see tensors put in their place.
    """

    def __init__(self, features: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        for k in range(num_layers):
            inputs = hidden if k else features
            for name, columns in ((f"weight_ih_{k}", inputs), (f"weight_hh_{k}", hidden)):
                weight = torch.empty(4 * hidden, columns).uniform_(-(hidden**-0.5), hidden**-0.5)
                self.register_parameter(name, nn.Parameter(weight))

    def forward(self, x: Tensor) -> Tensor:
        weights: list[Tensor] = [w for w in self._parameters.values() if w is not None]
        start = x.new_zeros(self.num_layers, x.shape[0], weights[1].shape[1])
        _, states, _ = torch.lstm(
            x,
            (start, start),
            weights,
            has_biases=False,
            num_layers=self.num_layers,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return states[-1]
