"""Image sources: digits, MNIST, MNIST by writer, Fashion-MNIST, EMNIST letters and CIFAR."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsieve.core.errors import DataError
from fedsieve.data.dataset import Affine, Dataset, standardise
from fedsieve.data.sources import readers
from fedsieve.data.sources.files import Paths


def _idx_names(folder: str, train: str = "train", test: str = "t10k") -> tuple[str, ...]:
    parts = ((part, kind) for part in (train, test) for kind in ("images-idx3", "labels-idx1"))
    return tuple(f"{folder}/{part}-{kind}-ubyte.gz" for part, kind in parts)


_MNIST = _idx_names("MNIST/raw")
_FASHION = _idx_names("FashionMNIST/raw")
_EMNIST = _idx_names("EMNIST/raw", "emnist-letters-train", "emnist-letters-test")
_WRITERS = "QMNIST/raw/qmnist-train-labels-idx2-int.gz"
_CIFAR10_PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

# Mean and deviation of the training pixels (0..1, by channel), computed from the files named
# here; those of CIFAR-100 are the commonly published ones.
_MNIST_AFFINE = standardise((0.1307,), (0.3081,))
_FASHION_AFFINE = standardise((0.2860,), (0.3530,))
_EMNIST_AFFINE = standardise((0.1722,), (0.3309,))
_CIFAR10_AFFINE = standardise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_CIFAR100_AFFINE = standardise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_CIFAR100_SUBSET_AFFINE = standardise((0.5083, 0.4905, 0.4426), (0.2689, 0.2581, 0.2786))
_DIGITS_AFFINE = standardise((0.3051,), (0.3762,), top=16)


@dataclass(frozen=True)
class Digits:
    """The 8x8 digits that come with scikit-learn; every fifth one of a class is for testing."""

    about: ClassVar[str] = "handwritten digits, 8x8 grey, 10 classes, built in"
    examples: ClassVar[str] = "1442 + 355"

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second to import

        stored = load_digits()
        x = torch.from_numpy(stored.images.astype(np.uint8)).unsqueeze(3)
        y = torch.from_numpy(stored.target.astype(np.int64))
        is_test = every_fifth(y)
        arrays = [x[~is_test], y[~is_test], x[is_test], y[is_test]]
        return _classes("digits", arrays, 10, _DIGITS_AFFINE)


@dataclass(frozen=True)
class Mnist:
    about: ClassVar[str] = "handwritten digits, 28x28 grey, 10 classes"
    examples: ClassVar[str] = "60000 + 10000"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (_MNIST,)
    origin: ClassVar[str] = "MNIST (LeCun, Cortes, Burges), in their original idx form"

    def load(self, files: Paths) -> Dataset:
        return _classes("mnist", _idx_arrays(files, _MNIST), 10, _MNIST_AFFINE)


@dataclass(frozen=True)
class QmnistWriters:
    """MNIST's training digits with their writers as natural clients.

    The writers of MNIST's test digits wrote none of its training digits, so the official test set
    is not used: every fifth training digit of each writer is held out as the writer's test data.
    """

    about: ClassVar[str] = "MNIST's training digits by writer (539 natural clients)"
    examples: ClassVar[str] = "48214 + 11786"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = ((*_MNIST[:2], _WRITERS),)
    origin: ClassVar[str] = "MNIST and QMNIST (Yadav, Bottou 2019: the extended labels)"

    def load(self, files: Paths) -> Dataset:
        x, y = _idx_arrays(files, _MNIST[:2])
        extended = readers.idx(files[_WRITERS], 2)
        if extended.shape[1] < 3 or not np.array_equal(extended[:, 0], y.numpy()):
            raise DataError(
                f"{files[_WRITERS]}: column 0 must repeat the labels of {files[_MNIST[1]]}; "
                "the two files do not belong together."
            )
        writer = torch.from_numpy(np.unique(extended[:, 2], return_inverse=True)[1])
        is_test = every_fifth(writer)
        arrays = [x[~is_test], y[~is_test], x[is_test], y[is_test]]
        dataset = _classes("qmnist_writers", arrays, 10, _MNIST_AFFINE)
        return replace(dataset, owners=writer[~is_test], owners_test=writer[is_test])


@dataclass(frozen=True)
class FashionMnist:
    about: ClassVar[str] = "pictures of clothes, 28x28 grey, 10 classes"
    examples: ClassVar[str] = "60000 + 10000"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (_FASHION,)
    origin: ClassVar[str] = "Fashion-MNIST (Xiao, Rasul, Vollgraf 2017), in their original idx form"

    def load(self, files: Paths) -> Dataset:
        return _classes("fashion_mnist", _idx_arrays(files, _FASHION), 10, _FASHION_AFFINE)


@dataclass(frozen=True)
class EmnistLetters:
    """EMNIST's letters; the files hold labels 1..26 and pictures with rows and columns swapped."""

    about: ClassVar[str] = "handwritten letters, 28x28 grey, 26 classes"
    examples: ClassVar[str] = "124800 + 20800"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (_EMNIST,)
    origin: ClassVar[str] = "EMNIST (Cohen, Afshar, Tapson, van Schaik 2017), the letters split"

    def load(self, files: Paths) -> Dataset:
        x, y, x_test, y_test = _idx_arrays(files, _EMNIST)
        x, x_test = (images.transpose(1, 2).contiguous() for images in (x, x_test))
        arrays = [x, y.long() - 1, x_test, y_test.long() - 1]
        return _classes("emnist_letters", arrays, 26, _EMNIST_AFFINE)


@dataclass(frozen=True)
class Cifar10:
    about: ClassVar[str] = "photographs, 32x32 colour, 10 classes"
    examples: ClassVar[str] = "50000 + 10000"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (
        (*(f"CIFAR10/{part}.webp" for part in _CIFAR10_PARTS), "CIFAR10/labels.npz"),
        tuple(f"cifar-10-batches-bin/{part}.bin" for part in _CIFAR10_PARTS),
    )
    origin: ClassVar[str] = "CIFAR-10 (Krizhevsky 2009): lossless mosaics or the binary version"

    def load(self, files: Paths) -> Dataset:
        if "CIFAR10/labels.npz" in files:
            paths = [files[f"CIFAR10/{part}.webp"] for part in _CIFAR10_PARTS]
            names = [f"{part}_labels" for part in _CIFAR10_PARTS]
            parts = _mosaics(paths, files["CIFAR10/labels.npz"], names)
        else:
            paths = [files[f"cifar-10-batches-bin/{part}.bin"] for part in _CIFAR10_PARTS]
            parts = [_records(path, label_bytes=1) for path in paths]
        x, y = (torch.cat(arrays) for arrays in zip(*parts[:5], strict=True))
        return _classes("cifar10", [x, y, *parts[5]], 10, _CIFAR10_AFFINE)


@dataclass(frozen=True)
class Cifar100:
    """CIFAR-100 with its fine labels."""

    about: ClassVar[str] = "photographs, 32x32 colour, 100 classes"
    examples: ClassVar[str] = "50000 + 10000"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
    )
    origin: ClassVar[str] = "CIFAR-100 (Krizhevsky 2009), the binary version"

    def load(self, files: Paths) -> Dataset:
        train, test = (_records(files[name], label_bytes=2) for name in self.layouts[0])
        return _classes("cifar100", [*train, *test], 100, _CIFAR100_AFFINE)


@dataclass(frozen=True)
class Cifar100Subset:
    """The first 100 training and 20 test images of each class of CIFAR-100; not the benchmark."""

    about: ClassVar[str] = "a fifth of CIFAR-100, 32x32 colour, 100 classes"
    examples: ClassVar[str] = "10000 + 2000"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (
        tuple(f"CIFAR100_subset/{name}" for name in ("train.webp", "test.webp", "labels.npz")),
    )
    origin: ClassVar[str] = "CIFAR-100 (Krizhevsky 2009), a subset as lossless mosaics"

    def load(self, files: Paths) -> Dataset:
        train, test, labels = (files[name] for name in self.layouts[0])
        parts = _mosaics([train, test], labels, ["train_labels", "test_labels"])
        return _classes("cifar100_subset", [*parts[0], *parts[1]], 100, _CIFAR100_SUBSET_AFFINE)


def every_fifth(groups: Tensor) -> Tensor:
    """True for the 5th, 10th, ... example of each group, in stored order."""
    order = groups.argsort(stable=True)
    sizes = groups.bincount()
    rank = torch.arange(len(groups)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    is_fifth = torch.empty(len(groups), dtype=torch.bool)
    is_fifth[order] = rank % 5 == 4
    return is_fifth


def _classes(name: str, arrays: Sequence[Tensor], classes: int, affine: Affine) -> Dataset:
    x, y, x_test, y_test = arrays
    return Dataset(
        name=name,
        x=x if x.ndim == 4 else x.unsqueeze(3),
        y=y.long(),
        x_test=x_test if x_test.ndim == 4 else x_test.unsqueeze(3),
        y_test=y_test.long(),
        kind="classes",
        num_outputs=classes,
        layout="images",
        scale=affine.scale,
        shift=affine.shift,
    )


def _idx_arrays(files: Paths, names: Sequence[str]) -> list[Tensor]:
    return [
        torch.from_numpy(readers.idx(files[name], 3 if "images" in name else 1).copy())
        for name in names
    ]


def _records(path: Path, label_bytes: int) -> tuple[Tensor, Tensor]:
    x, y = readers.cifar_records(path, label_bytes)
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.copy())


def _mosaics(
    paths: Sequence[Path], labels: Path, names: Sequence[str]
) -> list[tuple[Tensor, Tensor]]:
    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter lock
        pictures = list(pool.map(readers.mosaic, paths))
    stored = readers.npz(labels, names)
    return [
        (torch.from_numpy(x), torch.from_numpy(stored[name]))
        for x, name in zip(pictures, names, strict=True)
    ]
