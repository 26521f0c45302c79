"""Data sets by name: `load("fashion_mnist", root, key)`, and the table of what there is.

digits, mnist, tiny_shakespeare(window=40), synthetic(task=values, density=0.1), ...
remote(owners=3, shape=[64], outputs=10)      the form of data that stays with its owners
npz:PATH                          arrays x, y, x_test, y_test (owners, owners_test) of your own
python:package.module:function    a function of your own that returns a Dataset
"""

import importlib
import logging
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fedsieve.core import options
from fedsieve.core.errors import ConfigError, DataError, FedsieveError
from fedsieve.core.keys import Key
from fedsieve.data.dataset import Dataset
from fedsieve.data.sources import npz
from fedsieve.data.sources.files import FileSource, is_present, locate
from fedsieve.data.sources.images import (
    Cifar10,
    Cifar100,
    Cifar100Subset,
    Digits,
    EmnistLetters,
    FashionMnist,
    Mnist,
    QmnistWriters,
)
from fedsieve.data.sources.remote import Remote
from fedsieve.data.sources.synthetic import Synthetic
from fedsieve.data.sources.texts import Delicious, Rcv1, Rcv1Small, TinyShakespeare

FILE_SOURCES: tuple[type[FileSource], ...] = (
    Mnist,
    QmnistWriters,
    FashionMnist,
    EmnistLetters,
    Cifar10,
    Cifar100,
    Cifar100Subset,
    TinyShakespeare,
    Delicious,
    Rcv1Small,
    Rcv1,
)
Source: TypeAlias = Digits | Synthetic | Remote | FileSource
LISTED: tuple[type[Digits | Synthetic | FileSource], ...] = (Digits, Synthetic, *FILE_SOURCES)
RENAMED = {
    "shakespeare": "tiny_shakespeare",  # it is not the one of LEAF
    "elsewhere": "remote",
}
log = logging.getLogger("fedsieve")
SOURCES: tuple[type[Source], ...] = (*LISTED, Remote)


class Listing(NamedTuple):
    """One line of the table of sources; `examples` counts train + test."""

    name: str
    about: str
    examples: str
    is_present: bool


def catalogue(root: Path | None = None) -> list[Listing]:
    """All named sources, and whether their files are there."""
    present = dict.fromkeys((Digits, Synthetic, Remote), True) | {
        s: is_present(s, root) for s in FILE_SOURCES
    }
    return [Listing(options.name_of(s), s.about, s.examples, present[s]) for s in LISTED]


def load(spec: str, root: Path | None, seed_key: Key) -> Dataset:
    """The data set that `spec` names, checked.

    Raises:
        ConfigError: the name or an option is unknown or out of range.
        DataError: files are missing, damaged or hold malformed data.
    """
    if spec.startswith("object:"):
        raise DataError(
            f"the data set was an object, {spec.removeprefix('object:')}, handed over in Python: "
            "hand it over again there, or bring it as npz:FILE or python:module:function."
        )
    if spec.startswith("npz:"):
        dataset = npz.load(Path(spec.removeprefix("npz:")))
    elif spec.startswith("python:"):
        dataset = _from_python(spec)
    else:
        source = options.read(_renamed(spec), SOURCES, "data set")
        if isinstance(source, Synthetic):
            dataset = source.draw(seed_key)
        elif isinstance(source, Digits | Remote):
            dataset = source.load()
        else:
            dataset = source.load(_located(source, root))
    dataset.check()
    return dataset


def is_remote(spec: str) -> bool:
    """Whether the data set that `spec` names stays with the nodes of a deployment."""
    name = spec.partition("(")[0].strip()
    return RENAMED.get(name, name) == options.name_of(Remote)


def _renamed(spec: str) -> str:
    """The spec under today's name of the data set."""
    name, bracket, rest = spec.partition("(")
    if name not in RENAMED:
        return spec
    log.warning("data set %r is called %s now; change the name.", name, RENAMED[name])
    return RENAMED[name] + bracket + rest


def _located(source: FileSource, root: Path | None) -> dict[str, Path]:
    try:
        return locate(source, root)
    except DataError as error:
        if isinstance(source, Cifar100) and is_present(Cifar100Subset, root):
            raise DataError(f"{error} The smaller cifar100_subset is available.") from None
        raise


def _from_python(spec: str) -> Dataset:
    module, _, function = spec.removeprefix("python:").partition(":")
    if not module or not function:
        raise ConfigError(f"data set {spec!r}: write it as python:package.module:function.")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"data set {spec!r}: {error}. The module must be importable (PYTHONPATH)."
        ) from error
    try:
        dataset = make()
    except FedsieveError:
        raise
    except Exception as error:
        raise DataError(
            f"{spec} raised {type(error).__name__}: {error}. It is called without arguments and "
            "must return a Dataset."
        ) from error
    if not isinstance(dataset, Dataset):
        raise DataError(f"{spec} returned {type(dataset).__name__}; it must return a Dataset.")
    return dataset
