"""Sparse, communication-efficient, probabilistic federated learning on PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsieve.api import run
    from fedsieve.core.errors import FedsieveError
    from fedsieve.data.dataset import Dataset
    from fedsieve.result import Result

__all__ = ["Dataset", "FedsieveError", "Result", "run"]
_HOMES = {
    "Dataset": "data.dataset",
    "FedsieveError": "core.errors",
    "Result": "result",
    "run": "api",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: `fedsieve --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
