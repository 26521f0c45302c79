"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from fedsieve.cli.app import main

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


@pytest.fixture
def cli(monkeypatch, capsys):
    """Call the command line; returns (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["fedsieve", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "240")
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
