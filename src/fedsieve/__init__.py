"""Sparse, communication-efficient, probabilistic federated learning on PyTorch."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsieve.core.errors import FedsieveError
    from fedsieve.core.method import Method, register
    from fedsieve.data.dataset import Dataset
    from fedsieve.jobs.api import run
    from fedsieve.jobs.config import Config
    from fedsieve.jobs.forecast import plan
    from fedsieve.jobs.library import load
    from fedsieve.jobs.progress import Watcher
    from fedsieve.jobs.result import Result
    from fedsieve.jobs.sweep import sweep
    from fedsieve.jobs.tune import tune
    from fedsieve.report.frames import compare

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
    "sweep",
    "tune",
]
_HOMES = {
    "Config": "jobs.config",
    "Dataset": "data.dataset",
    "FedsieveError": "core.errors",
    "Method": "core.method",
    "Result": "jobs.result",
    "Watcher": "jobs.progress",
    "compare": "report.frames",
    "load": "jobs.library",
    "plan": "jobs.forecast",
    "register": "core.method",
    "run": "jobs.api",
    "sweep": "jobs.sweep",
    "tune": "jobs.tune",
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
