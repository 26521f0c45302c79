"""The command line as a function."""

import pytest

from fedsieve.cli.app import main


@pytest.fixture
def cli(monkeypatch, capsys):
    """Call the command line; returns (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["fedsieve", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
