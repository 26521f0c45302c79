"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a loaded machine is not a failure
settings.load_profile("patient")


@pytest.fixture(scope="session")
def data_root():
    """The folder with benchmark files; tests that need it are skipped where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("FEDSIEVE_DATA") or beside)
    if not root.is_dir():
        pytest.skip(f"no benchmark files: {root} is not a folder (set FEDSIEVE_DATA)")
    return root
