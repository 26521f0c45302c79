"""A user's own data: one npz file with arrays x, y, x_test, y_test (owners, owners_test).

x holds rows (N, F), images (N, H, W, C), or grey images (N, H, W) if uint8. Pixels of uint8 are
standardised by channel; floats are taken as they are. y holds classes (whole numbers), values
(floats) or a 0/1 matrix with one column for each label.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsieve.core.errors import DataError
from fedsieve.data.dataset import Dataset, Kind, Layout, standardise
from fedsieve.data.sources import readers
from fedsieve.data.sources.readers import Array


def load(path: Path) -> Dataset:
    """The data set in `path`."""
    if not path.is_file():
        raise DataError(f"npz:{path}: no such file (looked for {path.absolute()}).")
    arrays = readers.npz(path, ("x", "y", "x_test", "y_test"), ("owners", "owners_test"))
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"{path}: {name} holds {array.dtype}; it must hold numbers.")
    layout, kind = _layout(path, arrays["x"]), _kind(arrays["y"])
    y, y_test = (_targets(path, name, arrays[name], kind) for name in ("y", "y_test"))
    dataset = Dataset(
        name=path.stem,
        x=_examples(arrays["x"], layout),
        y=y,
        x_test=_examples(arrays["x_test"], layout),
        y_test=y_test,
        kind=kind,
        num_outputs=_num_outputs(kind, y, y_test),
        layout=layout,
        owners=_whole(path, "owners", arrays["owners"]) if "owners" in arrays else None,
        owners_test=(
            _whole(path, "owners_test", arrays["owners_test"]) if "owners_test" in arrays else None
        ),
    )
    return _standardised(dataset) if dataset.x.dtype == torch.uint8 else dataset


def _layout(path: Path, x: Array) -> Layout:
    is_pixels = x.dtype == np.uint8
    if x.ndim == 2 and (is_pixels or x.dtype.kind == "f"):
        return "rows"
    if (x.ndim == 4 and (is_pixels or x.dtype.kind == "f")) or (x.ndim == 3 and is_pixels):
        return "images"
    raise DataError(
        f"{path}: x is {x.dtype} {x.shape}; it must be rows (N, F) or images (N, H, W, C) of "
        "uint8 or floats, or grey images (N, H, W) of uint8."
    )


def _kind(y: Array) -> Kind:
    if y.ndim == 2:
        return "labels"
    return "values" if y.dtype.kind == "f" else "classes"


def _num_outputs(kind: Kind, y: Tensor, y_test: Tensor) -> int:
    if kind == "classes":
        return 1 + max((int(part.max()) for part in (y, y_test) if part.numel()), default=0)
    return y.shape[1] if kind == "labels" else 1


def _examples(x: Array, layout: Layout) -> Tensor:
    if layout == "rows" or x.dtype != np.uint8:
        return torch.from_numpy(x.astype(np.float32))
    return torch.from_numpy(x[..., None] if x.ndim == 3 else x)


def _targets(path: Path, name: str, y: Array, kind: Kind) -> Tensor:
    return _whole(path, name, y) if kind == "classes" else torch.from_numpy(y.astype(np.float32))


def _whole(path: Path, name: str, array: Array) -> Tensor:
    if array.dtype.kind == "f":
        raise DataError(f"{path}: {name} holds {array.dtype}; it must hold whole numbers.")
    return torch.from_numpy(array.astype(np.int64))


def _standardised(dataset: Dataset) -> Dataset:
    pixels = dataset.x.flatten(0, 2).double() / 255
    std = pixels.std(0, correction=0).clamp(min=1 / 255)  # a flat channel stays finite
    affine = standardise(tuple(pixels.mean(0).tolist()), tuple(std.tolist()))
    return replace(dataset, scale=affine.scale, shift=affine.shift)
