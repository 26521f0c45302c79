"""Fixtures for all tests."""

import functools
import os
from pathlib import Path

import pytest
from hypothesis import settings

from fedsieve.cli.app import main
from fedsieve.core.keys import fold
from fedsieve.data.sources.registry import catalogue, load

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


@pytest.fixture(scope="session")
def loaded(data_root):
    """A data set from its files, read at most once; skips where they are not there."""

    @functools.cache
    def get(spec):
        name = spec.partition("(")[0]
        if not any(line.is_present for line in catalogue(data_root) if line.name == name):
            pytest.skip(f"no files of {name} under {data_root}")
        return load(spec, data_root, fold(0, "data"))

    return get


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
