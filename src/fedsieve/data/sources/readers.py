"""Readers of the file formats that benchmark data comes in; a damaged file is a DataError."""

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedsieve.core.errors import DataError

Array: TypeAlias = npt.NDArray[Any]

_TILE = 32


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from error


def idx(path: Path, ndim: int) -> Array:
    """An `ndim`-dimensional array in idx form: 00 00 type ndim, big-endian sizes, the values."""
    data = read_bytes(path)
    kinds: dict[int, np.dtype[Any]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in kinds:
        raise _damaged(path, f"an idx file starts 00 00 08 or 00 00 0c, found {data[:3].hex(' ')}")
    if data[3] != ndim:
        raise _damaged(path, f"expected {ndim} dimensions, found {data[3]}")
    start = 4 + 4 * ndim
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    dtype = kinds[data[2]]
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise _damaged(path, f"shape {shape} needs {expected} bytes, found {len(data)}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def mosaic(path: Path) -> Array:
    """RGB tiles (N, 32, 32, 3) of one large picture, row by row."""
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    height, width, _ = pixels.shape
    if height % _TILE or width % _TILE:
        raise _damaged(path, f"{width}x{height} pixels cannot be cut into {_TILE}x{_TILE} tiles")
    grid = pixels.reshape(height // _TILE, _TILE, width // _TILE, _TILE, 3)
    return grid.swapaxes(1, 2).reshape(-1, _TILE, _TILE, 3)


def cifar_records(path: Path, label_bytes: int) -> tuple[Array, Array]:
    """Images (N, 32, 32, 3) and their last label byte from CIFAR's binary version."""
    data = np.frombuffer(read_bytes(path), np.uint8)
    size = label_bytes + 3 * _TILE * _TILE
    if data.size == 0 or data.size % size:
        raise _damaged(path, f"{data.size} bytes are not whole records of {size}")
    records = data.reshape(-1, size)
    planes = records[:, label_bytes:].reshape(-1, 3, _TILE, _TILE)
    return planes.transpose(0, 2, 3, 1), records[:, label_bytes - 1]


def npz(path: Path, names: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Array]:
    """The named arrays of an npz file; those in `optional` may be absent. Never unpickles."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            absent = [n for n in names if n not in stored.files]
            if absent:
                held = ", ".join(stored.files) or "nothing"
                raise DataError(f"{path}: no array named {', '.join(absent)}; it holds {held}.")
            wanted = [*names, *(n for n in optional if n in stored.files)]
            return {n: stored[n] for n in wanted}
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, str(error)) from error


def sparse_arff(path: Path) -> Array:
    """Rows {index value,...} of a sparse ARFF file as a dense float32 matrix."""
    header, _, body = read_bytes(path).decode("utf-8", "replace").partition("\n@data")
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if not (line.startswith("{") and line.endswith("}")):
            raise _damaged(path, f"data row {number} is not of the form {{index value,...}}")
    rows = np.zeros((len(lines), header.count("\n@attribute")), np.float32)
    entries = [line.count(" ") for line in lines]
    words = " ".join(line[1:-1].replace(",", " ") for line in lines).split()
    try:
        pairs = np.array(words, np.float64).reshape(-1, 2)
        rows[np.repeat(np.arange(len(lines)), entries), pairs[:, 0].astype(np.int64)] = pairs[:, 1]
    except (ValueError, IndexError) as error:
        raise _damaged(path, str(error)) from error
    return rows


def svmlight(path: Path, num_features: int) -> tuple[Array, Array]:
    """A dense float32 matrix and the labels of an svmlight file."""
    from sklearn.datasets import load_svmlight_file  # noqa: PLC0415 - takes a second to import

    try:
        rows, labels = load_svmlight_file(str(path), n_features=num_features, dtype=np.float32)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    return rows.toarray(), labels


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path}: damaged or of another format: {reason}.")
