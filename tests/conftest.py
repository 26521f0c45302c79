"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from fedsieve.cli.app import main

settings.register_profile("patient", deadline=None)  # a loaded machine is not a failure
settings.load_profile("patient")


FILES = os.environ.get("FEDSIEVE_DATA")  # before it is hidden


@pytest.fixture(scope="session", autouse=True)
def _without_files(tmp_path_factory):
    """No test finds data files by accident: those that need some ask for `data_root`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSIEVE_DATA", str(tmp_path_factory.mktemp("no-data")))
        yield


@pytest.fixture(scope="session")
def data_root():
    """The folder with benchmark files; tests that need it are skipped where there is none."""
    if not FILES or not Path(FILES).is_dir():
        pytest.skip(f"no benchmark files: FEDSIEVE_DATA={FILES or ''!r} is not a folder")
    return Path(FILES)


def pytest_collection_modifyitems(items):
    """`-m data` is every test that wants files."""
    for item in items:
        if "data_root" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)


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
