"""Sparse, communication-efficient, probabilistic federated learning on PyTorch."""

from fedsieve.api import run
from fedsieve.core.errors import FedsieveError
from fedsieve.data.dataset import Dataset
from fedsieve.result import Result

__all__ = ["Dataset", "FedsieveError", "Result", "run"]
