"""The walk-throughs of docs/contributing work as they are written.

A block with a title is a new file, a `diff` with a title an edit; lines of `sh` blocks are run, and
a `text` block after them holds lines of what they print, with `...` for what may differ.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/contributing").glob("*.md"))
COPIED = ("src", "tests", "tools", "docs", "pyproject.toml", "README.md")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    kind: str
    path: str
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(*found) for found in BLOCK.findall(page)]


def edited(text: str, diff: str) -> str:
    """The text after an edit, in which lines with @@ separate the places."""
    for place in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = [line if line.strip() else " \n" for line in place.splitlines(keepends=True)]
        before, after = ("".join(x[1:] for x in lines if x[0] in marks) for marks in (" -", " +"))
        found = [m.start() for m in re.finditer(f"^(?={re.escape(before)})", text, re.MULTILINE)]
        if len(found) != 1:
            raise ValueError(f"found {len(found)} times, must be found once:\n{before}")
        text = text[: found[0]] + after + text[found[0] + len(before) :]
    return text


def missing(output: str, expected: str) -> list[str]:
    """Expected lines that are not in the output; `...` stands for a word or its end."""
    flat = " ".join(output.split())
    patterns = {line: re.escape(" ".join(line.split())) for line in expected.splitlines()}
    return [
        line
        for line, pattern in patterns.items()
        if not re.search(pattern.replace(r"\.\.\.", r"\S+"), flat)
    ]


def printed(command: str, folder: Path) -> str:
    """What a line of a shell prints in the copied project."""
    words = shlex.split(command)
    env = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST_", "FEDSIEVE_"))}
    env |= {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    while "=" in words[0]:
        env |= [words.pop(0).split("=", 1)]
    start = {"fedsieve": ["-m", "fedsieve"], "python": []}[words[0]]
    done = subprocess.run(
        [sys.executable, *start, *words[1:]],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_walk_through_works_as_written(path, tmp_path):
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    output = ""
    for kind, title, text in blocks(path.read_text()):
        target = tmp_path / title
        if title and kind == "diff":
            target.write_text(edited(target.read_text(), text))
        elif title:
            assert not target.exists(), f"{title} exists already: edit it with a diff"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        elif kind == "sh":
            lines = text.replace("\\\n", " ").splitlines()
            output = "\n".join(printed(line, tmp_path) for line in lines)
        else:
            assert kind == "text", f"a block of {kind} without a title is not tried by any test"
            assert not missing(output, text), output
    changed = [b.path for b in blocks(path.read_text()) if b.path.endswith(".py")]
    printed(f"python -m ruff check {' '.join(changed)}", tmp_path)
    printed(f"python -m ruff format --check {' '.join(changed)}", tmp_path)


def test_there_is_a_walk_through_for_everything_that_is_added_often():
    assert {path.stem for path in PAGES} == {
        "dataset", "method", "metric", "model", "recipe", "setting",
    }  # fmt: skip
    index = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"(docs/contributing/{path.name})" in index for path in PAGES)


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda path: path.stem)
def test_files_that_are_named_exist(path):
    text = BLOCK.sub("", path.read_text())
    named = {name for name in re.findall(r"`([\w/.]+\.(?:py|md|toml|yml))`", text) if "/" in name}
    real = {name for name in named if not re.search("[A-Z]{3}", name)}
    assert real
    assert not {n for n in real if not any((ROOT / f / n).exists() for f in (".", "src/fedsieve"))}


def test_an_edit_changes_the_one_place_that_its_lines_name():
    assert edited("a\nb\nc\n", " a\n-b\n+x\n c\n") == "a\nx\nc\n"
    assert edited("a\n\nb\n", " a\n\n+x\n@@\n-b\n") == "a\n\nx\n"


@pytest.mark.parametrize("diff", ["-absent\n", " twice\n+x\n", "+without a place\n", " wic\n"])
def test_an_edit_without_one_place_is_refused(diff):
    with pytest.raises(ValueError, match="must be found once"):
        edited("twice\ntwice\n", diff)


def test_expected_lines_are_looked_for_with_gaps():
    output = "sent   1.23 MB\n  (up 1 MB)"
    assert missing(output, "sent ... MB (up ... MB)\n") == []
    assert missing(output, "sent ... MB (down\nup 2 MB\n") == ["sent ... MB (down", "up 2 MB"]
