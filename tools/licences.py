"""docs/licences.md: what fedsieve needs at run time, and under which licence.

python tools/licences.py           # write it, from the packages' own metadata
python tools/licences.py --check   # are the names those of pyproject.toml and the lock file?
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from locked import LOCK, ROOT, Locked, asked, read_lock, read_project

PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences

What fedsieve needs at run time, with the licence each package states in its own metadata. fedsieve
itself is under Apache-2.0 and ships none of them. `make licences` writes this page; `make check`
compares its names with `pyproject.toml` and `requirements/dev.lock`.
"""
DIRECT = """
## Asked for

| package | versions | extra | licence |
|---|---|---|---|
"""
INDIRECT = """
## Brought along

By those above, on some platform or other. What the extras `tensorboard` and `mlflow` bring is not
listed, since they are not in the lock file. torch's build for NVIDIA cards brings NVIDIA's
libraries, under NVIDIA's licences.

| package | for | licence |
|---|---|---|
"""


class Direct(NamedTuple):
    """A dependency that pyproject.toml names, with the extra it belongs to."""

    name: str
    versions: str
    extra: str


def direct(project: dict[str, Any]) -> list[Direct]:
    """What every installation needs, then extra by extra; `dev` is not run time."""
    extras = [name for name in project["project"]["optional-dependencies"] if name != "dev"]
    plain = asked(project)
    rows = [_direct(need, "") for need in plain]
    for extra in extras:
        rows += [_direct(need, extra) for need in asked(project, extra)[len(plain) :]]
    return rows


def _direct(need: Requirement, extra: str) -> Direct:
    bounds = sorted(map(str, need.specifier), reverse=True)
    return Direct(canonicalize_name(need.name), f"`{','.join(bounds)}`", extra)


def indirect(rows: Sequence[Direct], lock: Sequence[Locked]) -> dict[str, list[str]]:
    """What those rows bring along according to the lock file, and which packages ask for it."""
    asking = {row.name for row in rows}
    found: dict[str, list[str]] = {}
    while more := {
        one.name: sorted(one.via & asking)
        for one in lock
        if one.name not in asking and one.via & asking
    }:
        found |= more
        asking |= more.keys()
    return dict(sorted(found.items()))


def licence(package: Message) -> str:
    """The SPDX expression of a package's metadata, else its classifiers, else its first words."""
    if expression := package["License-Expression"]:
        return str(expression)
    marks = [c for c in package.get_all("Classifier", []) if c.startswith("License ::")]
    names = [mark.rpartition(" :: ")[2] for mark in marks]
    text = " ".join(str(package["License"] or "").split())
    return ", ".join(n for n in names if n != "OSI Approved") or text[:60] or "not stated"


def described(name: str) -> Message:
    """The metadata of a package, from the index where it is not installed."""
    try:
        return Parser().parsestr(distribution(name).read_text("METADATA") or "")
    except PackageNotFoundError:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "--dest", folder, name], check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                inside = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
                return Parser().parsestr(wheel.read(inside).decode())


def page(rows: Sequence[Direct], brought: dict[str, list[str]]) -> str:
    def stated(name: str) -> str:
        return licence(described(name)).replace("|", "/")

    first = (f"| {r.name} | {r.versions} | {r.extra} | {stated(r.name)} |\n" for r in rows)
    second = (f"| {n} | {', '.join(by)} | {stated(n)} |\n" for n, by in brought.items())
    return HEAD + DIRECT + "".join(first) + INDIRECT + "".join(second)


def differences(text: str, names: set[str]) -> Iterator[str]:
    """Names that a page lacks or has too many."""
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \|", text, re.MULTILINE)) - {"package"}
    yield from (f"{name} is not on the page" for name in sorted(names - listed))
    yield from (f"{name} is on the page and not needed" for name in sorted(listed - names))


def main(arguments: list[str]) -> None:
    rows = direct(read_project())
    brought = indirect(rows, read_lock(LOCK.read_text()))
    if "--check" not in arguments:
        PAGE.write_text(page(rows, brought))
    found = list(differences(PAGE.read_text(), {row.name for row in rows} | brought.keys()))
    if found:
        sys.exit("\n".join([*found, "docs/licences.md is out of date: make licences"]))
    print(f"{len({row.name for row in rows}) + len(brought)} licences listed")


if __name__ == "__main__":
    main(sys.argv[1:])
