"""Stored results, results/RECIPE/TIER.jsonl: one line for each row and seed, below how it was made.

A line with a `command` says by which command, commit, version and machine the lines below it were
made, up to the next such line.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch

import fedsieve
from fedsieve.core.errors import DataError
from fedsieve.engine import disk
from fedsieve.engine.executors.cores import cores

Line: TypeAlias = dict[str, Any]


def read(path: Path) -> list[Line]:
    """The lines of a file, each with its `row`, `seed` and `figures`.

    Raises:
        DataError: it is not there, or not such a file.
    """
    return [line for _, lines in _sections(path) for line in lines]


def add(path: Path, command: str, lines: Iterable[Line]) -> None:
    """Add lines to a file, which is made if need be; the same rows and seeds are replaced.

    So are lines of the same rows without a seed, which hold means over several.
    """
    lines = list(lines)
    replaced = {key for row, seed in map(_key, lines) for key in ((row, seed), (row, None))}
    before = _sections(path) if path.exists() else []
    sections = [(head, [x for x in old if _key(x) not in replaced]) for head, old in before]
    head = _head(command)
    if sections and sections[-1][0] == head:
        sections[-1][1].extend(lines)
    else:
        sections.append((head, lines))
    kept = [line for head, below in sections if below for line in (head, *below)]
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.write(path, "".join(f"{json.dumps(x, ensure_ascii=False)}\n" for x in kept).encode())


def _head(command: str) -> Line:
    machine = {"cores": cores(), "platform": platform.platform(), "torch": torch.__version__}
    return {
        "command": command,
        "commit": _commit(),
        "version": fedsieve.__version__,
        "machine": machine,
    }


def _commit() -> str | None:
    """The commit of the program, if it runs from a checkout; "-dirty" if that was changed."""
    program, git = Path(fedsieve.__file__), shutil.which("git")
    if git is None:
        return None
    said = ""
    for command in (["ls-files", "--error-unmatch", program.name],
                    ["describe", "--always", "--dirty", "--exclude=*"]):  # fmt: skip
        ended = subprocess.run(  # noqa: S603 - our own command
            [git, "-C", str(program.parent), *command], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            return None
        said = ended.stdout.strip()
    return said


def _sections(path: Path) -> list[tuple[Line, list[Line]]]:
    sections: list[tuple[Line, list[Line]]] = []
    try:
        for line in map(json.loads, path.read_text().splitlines()):
            if "command" in line:
                sections.append((line, []))
            else:
                sections[-1][1].append(line)
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"{path}: not a file of results, whose first line has the command ({error!r}). "
            "`fedsieve reproduce NAME --write FOLDER` makes one."
        ) from error
    return sections


def _key(line: Line) -> tuple[str, int | None]:
    return line["row"], line.get("seed")
