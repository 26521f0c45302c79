"""Examples run, documented commands work, and every method is documented."""

import importlib
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from contract.test_every_method import (
    test_functions_do_not_change_their_inputs,  # noqa: F401 - collected here for the example
    test_in_line_equals_pool_bit_for_bit,  # noqa: F401
    test_is_a_frozen_dataclass_with_a_documented_file,  # noqa: F401
    test_messages_survive_the_wire,  # noqa: F401
    test_resumed_equals_uninterrupted_bit_for_bit,  # noqa: F401
)
from fedsieve.cli.app import application
from fedsieve.core import method
from fedsieve.jobs.config import SETTINGS
from small import METHODS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [  # walk-throughs for contributors add what they name: tests/docs carries them out
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "contributing"),
]
NEW_METHOD = "fed_topk"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The contract tests imported above run for the example's method."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", [NEW_METHOD])


@pytest.fixture(autouse=True)
def _registry_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that examples register are unknown again afterwards."""
    monkeypatch.setattr(method, "_methods", dict(method._methods))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("new_method", None)
    importlib.import_module("new_method")


def commands(page: Path) -> list[list[str]]:
    """The `fedsieve ...` lines of a page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("fedsieve ")]
    return [words[1:] for words in found if not any(word.startswith("[") for word in words)]


def test_quick_start_runs_as_a_program() -> None:
    code = "import quickstart; quickstart.main(rounds=1)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "fediter_ht" in done.stdout
    assert len((ROOT / "examples" / "quickstart.py").read_text().splitlines()) <= 30


def test_new_method_runs_and_sends_less_than_fedavg(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("new_method").main(rounds=1)
    fedavg, fed_topk = re.findall(r"up +([\d.]+) MB", capsys.readouterr().out)
    assert float(fed_topk) < float(fedavg) / 5


def test_model_of_own_module_scores_outside_as_in_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    importlib.import_module("own_model_and_data").main(rounds=1)
    inside, outside, _ = capsys.readouterr().out.splitlines()
    assert inside.split()[-1] == outside.split()[-1]


def test_demo_and_tests_are_on_the_first_screen() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "make demo" in screen
    assert "make test" in screen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_parse(page: Path) -> None:
    known = typer.main.get_group(application()).commands
    for name, *arguments in commands(page):
        if not name.startswith("-"):
            known[name].make_context(name, arguments)


@pytest.mark.parametrize("unit", sorted((ROOT / "examples/deploy").glob("*.service")))
def test_units_of_systemd_start_commands_that_parse(unit: Path) -> None:
    known = typer.main.get_group(application()).commands
    text = unit.read_text().replace("\\\n", " ").replace("${CLIENT}", "0")
    (line,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    program, name, *arguments = shlex.split(line)
    assert program.endswith("/bin/fedsieve")
    known[name].make_context(name, arguments)


def test_commands_of_the_read_me_work_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (job,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    Path("job.toml").write_text(job)
    for words in commands(ROOT / "README.md"):
        if words[0] in {"deploy", "node"}:
            continue  # they wait for each other; tests/e2e runs them
        short = [*words, "--rounds", "1", "--quiet"] if words[0] == "run" else words
        result = CliRunner().invoke(application(), short, catch_exceptions=False)
        assert result.exit_code == 0, (words, result.output)


def test_every_method_has_a_page_and_a_line_in_both_tables() -> None:
    row = re.compile(r"^\| \[`(\w+)`\]\((?:docs/methods/)?(\w+)\.md\) \|(.*)$", re.MULTILINE)
    index, read_me = (
        row.findall((ROOT / name).read_text()) for name in ("docs/methods/index.md", "README.md")
    )
    pages = {path.stem for path in (ROOT / "docs/methods").glob("*.md")} - {"index"}
    assert set(METHODS) == pages, "every method has a page docs/methods/NAME.md"
    assert {name for name, page, _ in index if name == page} == pages
    assert read_me == index, "README.md and docs/methods/index.md list methods alike"
    for name in METHODS:
        assert (ROOT / f"docs/methods/{name}.md").read_text().startswith(f"# {name}\n")


def test_every_setting_is_in_the_guide() -> None:
    described = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "docs/guide/run.md").read_text(), re.MULTILINE
    )
    assert set(SETTINGS) <= set(described)


@pytest.mark.parametrize("path", sorted((ROOT / "examples/notebooks").glob("*.py")))
def test_notebooks_run_from_top_to_bottom(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDSIEVE_ROUNDS", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = re.split(r"^# %%", path.read_text(), flags=re.MULTILINE)[1:]
    assert sum(cell.startswith(" [markdown]") for cell in cells) >= 3
    scope: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        exec(compile(cell.removeprefix(" [markdown]"), path, "exec"), scope)
    shown = [value for value in scope.values() if hasattr(value, "_repr_html_")]
    assert len(shown) >= 1
