"""Fixtures for tests of the wire. One thread: tensors are small and the machine is shared."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fuzz():
    """The module benchmarks/fuzz_wire.py, which makes forged frames and judges what they do."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_wire.py"
    spec = importlib.util.spec_from_file_location("fuzz_wire", path)
    module = sys.modules["fuzz_wire"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
