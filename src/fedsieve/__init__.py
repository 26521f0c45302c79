"""Sparse, communication-efficient, probabilistic federated learning on PyTorch."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsieve.api import run
    from fedsieve.config import Config
    from fedsieve.core.errors import FedsieveError
    from fedsieve.core.method import Method, register
    from fedsieve.data.dataset import Dataset
    from fedsieve.forecast import plan
    from fedsieve.library import load
    from fedsieve.progress import Watcher
    from fedsieve.report.frames import compare
    from fedsieve.result import Result

__all__ = [
    "Config",
    "Dataset",
    "FedsieveError",
    "Method",
    "Result",
    "Watcher",
    "compare",
    "load",
    "plan",
    "register",
    "run",
]
_HOMES = {
    "Config": "config",
    "Dataset": "data.dataset",
    "FedsieveError": "core.errors",
    "Method": "core.method",
    "Result": "result",
    "Watcher": "progress",
    "compare": "report.frames",
    "load": "library",
    "plan": "forecast",
    "register": "core.method",
    "run": "api",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: `fedsieve --help` does not wait for torch."""
    if name == "__version__":
        return version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names; modules that happen to be imported are found by their path."""
    return [*__all__, "__doc__", "__version__"]
