"""Trees as safetensors bytes: for client states, checkpoints and pipes between processes."""

from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ResumeError

_INT, _FLOAT = "|int", "|float"  # behind the path of a number, which is stored as a 0-d tensor


def pack(value: Any) -> bytes:
    """A tree of tensors and numbers as one safetensors blob."""
    arrays: dict[str, Any] = {}
    for path, leaf in tree.leaves(value):
        if isinstance(leaf, Tensor):
            arrays[path] = leaf.detach().contiguous().numpy()
        elif isinstance(leaf, int):
            arrays[path + _INT] = np.array(leaf, dtype=np.int64)
        else:
            arrays[path + _FLOAT] = np.array(leaf, dtype=np.float64)
    # safetensors sorts by type and name; the order of leaves is part of a tree.
    numbered = {f"{i:05d}:{path}": array for i, (path, array) in enumerate(arrays.items())}
    return bytes(safetensors.numpy.save(numbered))


def unpack(kind: Any, data: bytes) -> Any:
    """The tree of type `kind` (a NamedTuple class or type hint) packed in `data`."""
    return _rebuilt(kind, safetensors.torch.load(data))


def read(kind: Any, path: Path) -> Any:
    """The tree in a file, memory-mapped: pages are read when touched.

    Raises:
        ResumeError: the file does not hold such a tree.
    """
    try:
        return _rebuilt(kind, safetensors.torch.load_file(path))
    except (OSError, safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ResumeError(f"{path}: does not hold what was kept there ({error}).") from error


def _rebuilt(kind: Any, tensors: dict[str, Tensor]) -> Any:
    leaves: dict[str, tree.Leaf] = {}
    for numbered in sorted(tensors):
        path, tensor = numbered.split(":", 1)[1], tensors[numbered]
        if path.endswith(_INT):
            leaves[path.removesuffix(_INT)] = int(tensor)
        elif path.endswith(_FLOAT):
            leaves[path.removesuffix(_FLOAT)] = float(tensor)
        else:
            leaves[path] = tensor
    return tree.rebuild(kind, leaves)


def tensor_file(params: dict[str, Tensor]) -> bytes:
    """A plain safetensors file of named tensors, as other programs expect it."""
    return bytes(safetensors.torch.save({n: t.detach().clone() for n, t in params.items()}))
