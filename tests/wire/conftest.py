"""Fixtures for tests of the wire. One thread: tensors are small and the machine is shared."""

import pytest
import torch

from fuzz import frames

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fuzz():
    """Forged frames, and a judge of what they do."""
    return frames
