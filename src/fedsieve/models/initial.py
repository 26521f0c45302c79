"""A start from tensors that were trained before."""

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedsieve.core.errors import ConfigError, ModelError


def initialised_from(
    path: Path, model: nn.Module | Callable[[], nn.Module]
) -> Callable[[], nn.Module]:
    """A factory of `model` with the tensors in a safetensors file in place of its own.

    Tensors that the file does not have start as they would: a new output layer, say.

    Raises:
        ConfigError: the file cannot be read.
        ModelError: it holds a tensor that the model does not have, or of another shape.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"init_from={str(path)!r}: not a readable safetensors file ({error})."
        ) from error
    if not tensors:
        raise ConfigError(f"init_from={str(path)!r}: the file holds no tensor.")

    def started() -> nn.Module:
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        state = module.state_dict()
        for name, tensor in tensors.items():
            expected = tuple(state[name].shape) if name in state else "no such tensor"
            if expected != tuple(tensor.shape):
                raise ModelError(
                    f"init_from={str(path)!r}: {name} has shape {tuple(tensor.shape)}, the model: "
                    f"{expected}. Choose the model the file is of, or leave the tensor out of it."
                )
            with torch.no_grad():
                state[name].copy_(tensor)
        return module

    return started
