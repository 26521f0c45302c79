"""A model in a folder: `model.safetensors` with its tensors, `model.json` with what they are.

The tensors are those of a dense network with the layers of `architecture` in smaller widths; the
weights that were pruned, and the channels they leave without use, are gone.
"""

from pathlib import Path
from typing import Literal

import msgspec
import safetensors.torch
from torch import Tensor, nn

from fedsieve.core.errors import DataError, ModelError
from fedsieve.core.message import Params
from fedsieve.core.method import Task
from fedsieve.engine import blob, disk
from fedsieve.metrics.macs import size
from fedsieve.models.zoo.registry import read_model
from fedsieve.sparsity.compaction import smallest

TENSORS, DESCRIPTION = "model.safetensors", "model.json"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What an exported model is; `whole_*` are those of the network it was cut from.

    Attributes:
        architecture: as `fedsieve models` lists it, with its options.
        scale: inputs are values * scale + shift, one number or one for each channel.
        macs: multiply-accumulates of one forward pass of one example.
        origin: where the model comes from: method, dataset, rounds, seed and the like.
    """

    architecture: str
    input_shape: tuple[int, ...]
    num_outputs: int
    kind: Literal["classes", "binary", "labels", "values"]
    scale: float | tuple[float, ...]
    shift: float | tuple[float, ...]
    values: int
    macs: int
    whole_values: int
    whole_macs: int
    origin: dict[str, str]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes and gives."""

    shape: tuple[int, ...]
    outputs: int
    scale: float | tuple[float, ...] = 1.0
    shift: float | tuple[float, ...] = 0.0


def save(
    folder: Path,
    task: Task,
    params: Params,
    architecture: str,
    inputs: Inputs,
    origin: dict[str, str],
) -> Description:
    """Cut a model to what is in use and write it to a new folder.

    Raises:
        DataError: the folder holds something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty. Choose another folder for the model.")
    small = smallest(task, params)
    ours, whole = size(task.graph, small), size(task.graph, params)
    description = Description(
        architecture=architecture,
        input_shape=inputs.shape,
        num_outputs=inputs.outputs,
        kind=task.kind,
        scale=inputs.scale,
        shift=inputs.shift,
        values=ours.values,
        macs=ours.macs,
        whole_values=whole.values,
        whole_macs=whole.macs,
        origin=origin,
    )
    folder.mkdir(parents=True, exist_ok=True)
    disk.write(folder / TENSORS, blob.tensor_file(small))
    text = msgspec.json.format(msgspec.json.encode(description), indent=2)
    disk.write(folder / DESCRIPTION, text + b"\n")
    return description


def read(folder: Path) -> tuple[Description, Params]:
    """The description and the tensors in a folder.

    Raises:
        DataError: there is no readable model.
    """
    try:
        text = (folder / DESCRIPTION).read_bytes()
        description = msgspec.json.decode(text, type=Description)
        return description, safetensors.torch.load_file(folder / TENSORS)
    except (OSError, msgspec.MsgspecError, safetensors.SafetensorError) as error:
        raise DataError(
            f"{folder}: no exported model ({error}). Write one with: fedsieve export RUN -o DIR."
        ) from error


def load(folder: Path) -> nn.Module:
    """The module, ready to predict: `load(folder)(inputs)`; see `Description` for its inputs.

    Raises:
        DataError: there is no readable model.
        ModelError: its tensors do not belong to its architecture.
    """
    description, params = read(folder)
    build = read_model(description.architecture).build
    module = build(description.input_shape, description.num_outputs)
    names = {n for n, t in module.state_dict().items() if t.is_floating_point()}
    if names != params.keys():
        odd = ", ".join(sorted(names ^ params.keys()))
        raise ModelError(f"{folder}: {description.architecture} does not have just these: {odd}.")
    for name, tensor in params.items():
        owner, _, entry = name.rpartition(".")
        _place(module.get_submodule(owner), entry, tensor)
    return module.eval()


def _place(layer: nn.Module, entry: str, tensor: Tensor) -> None:
    """Put a tensor in, and let the layer's own account of its widths follow."""
    is_parameter = entry in layer._parameters
    setattr(layer, entry, nn.Parameter(tensor) if is_parameter else tensor)
    if entry != "weight":
        return
    match layer:
        case nn.Linear():
            layer.out_features, layer.in_features = tensor.shape
        case nn.Conv1d() | nn.Conv2d():
            layer.out_channels = tensor.shape[0]
            layer.in_channels = tensor.shape[1] * layer.groups
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            layer.num_features = len(tensor)
