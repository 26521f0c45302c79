"""The layer graph of a module, from a symbolic trace and the shapes of an example of zeros."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedsieve.core.errors import ModelError
from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.models.graph import EXAMPLES, Walk
from fedsieve.models.zoo.lstm import StackedLstm


def trace(
    module: nn.Module, input_shape: tuple[int, ...], *, is_tokens: bool = False
) -> LayerGraph:
    """The layer graph of `module` for inputs of `input_shape` (without the batch axis).

    Raises:
        ModelError: the module cannot be traced, holds a layer without a rule, shares a weight
            between layers, or does not take such inputs; names the layer and the way out.
    """
    _refuse_shared_weights(module)
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        walk = Walk(module, _symbolic(module))
        kind = torch.long if is_tokens else torch.float32
        example = torch.zeros(EXAMPLES, *input_shape, dtype=kind)
        with torch.no_grad():
            walk.run(example)
    finally:
        for m, is_training in modes.items():
            m.training = is_training
    graph = walk.finish()
    layers = (replace(layer, is_padded=_is_padded(module, layer)) for layer in graph.layers)
    return replace(graph, layers=tuple(layers))


def _is_padded(module: nn.Module, layer: Layer) -> bool:
    """Whether a convolution reads a border of zeros."""
    if layer.kind not in {"conv", "depthwise"}:
        return False
    padding = module.get_submodule(layer.name).padding
    return padding == "same" or (isinstance(padding, tuple) and any(padding))


class _Tracer(fx.Tracer):
    """Stops at the layers of torch.nn and at our LSTM; names a module that cannot be traced."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, StackedLstm) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except ModelError:
            raise
        except Exception as error:
            raise _untraceable(f"layer {self.path_of_module(m)!r}", m, error) from error


def _symbolic(module: nn.Module) -> fx.Graph:
    try:
        graph = _Tracer().trace(module)
    except ModelError:
        raise
    except Exception as error:
        raise _untraceable("the model", module, error) from error
    inputs = [n for n in graph.nodes if n.op == "placeholder" and not n.args]
    if len(inputs) != 1:
        names = ", ".join(str(n.target) for n in inputs)
        raise ModelError(
            f"the model ({type(module).__name__}) takes {len(inputs)} inputs ({names}), but it is "
            "given one tensor of examples. Write a module around it whose forward takes that."
        )
    return graph


def _untraceable(where: str, module: nn.Module, error: Exception) -> ModelError:
    return ModelError(
        f"{where} ({type(module).__name__}) cannot be traced: {str(error).rstrip('.')}. Its "
        "forward may use layers and tensor operations, but no `if` or loop that depends on the "
        "values or sizes of a tensor. Write it so, or build that part from layers of torch.nn."
    )


def _refuse_shared_weights(module: nn.Module) -> None:
    owners: dict[Tensor, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = owners.setdefault(parameter, name)
        if first != name:
            raise ModelError(
                f"{first} and {name} are one shared tensor. Masks, messages and the count of MACs "
                "need a weight of its own in every layer: give each layer its own."
            )
