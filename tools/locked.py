"""Does requirements/dev.lock fit pyproject.toml? Without a network, for every platform at once.

python tools/locked.py
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "dev.lock"
PROJECT = "fedsieve"
NOT_LOCKED = "torch"  # its builds for processors and for NVIDIA cards are different files
ASKED_BY_PROJECT = f"{PROJECT} (pyproject.toml)"
PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ;\\]+)")


class Locked(NamedTuple):
    """A version in the lock file, with the hashes of its files and the names that ask for it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    via: frozenset[str]


def read_project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def asked(project: dict[str, Any], *extras: str) -> list[Requirement]:
    """What the project needs, and what these extras and those they name add."""
    table = project["project"]
    found: list[Requirement] = []
    waiting = [*table["dependencies"], *(line for e in extras for line in _extra(table, e))]
    while waiting:
        requirement = Requirement(waiting.pop(0))
        if canonicalize_name(requirement.name) == PROJECT:
            waiting += (line for e in sorted(requirement.extras) for line in _extra(table, e))
        else:
            found.append(requirement)
    return found


def _extra(table: dict[str, Any], name: str) -> list[str]:
    lines: list[str] = table["optional-dependencies"][name]
    return lines


def read_lock(text: str) -> list[Locked]:
    """The versions in a lock file; a name has several where platforms or Pythons differ."""
    return [
        _locked(block) for block in re.split(r"\n(?=[a-z0-9])", "\n" + text) if PIN.match(block)
    ]


def _locked(block: str) -> Locked:
    pin = PIN.match(block)
    if pin is None:
        raise ValueError(f"no version in {block!r}")
    via = block.partition("# via")[2].partition("\n\n")[0]
    names = (line.strip(" #") for line in via.splitlines())
    return Locked(
        pin["name"],
        pin["version"],
        tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block)),
        frozenset(name for name in names if name),
    )


def mistakes(project: dict[str, Any], text: str) -> Iterator[str]:
    """Every disagreement between the dependencies of the project and a lock file, in words."""
    lock = read_lock(text)
    needs = [r for r in asked(project, "dev") if canonicalize_name(r.name) != NOT_LOCKED]
    for need in needs:
        versions = [one.version for one in lock if one.name == canonicalize_name(need.name)]
        if not versions:
            yield f"{need} is not locked"
        for version in versions:
            if not need.specifier.contains(version, prereleases=True):
                yield f"{need.name} is locked at {version}, which is not {need.specifier}"
        for name in sorted(_of_extras(need) - {one.name for one in lock}):
            yield f"{name} is not locked; {need} asks for it"
    names = {canonicalize_name(need.name) for need in needs}
    for one in lock:
        if ASKED_BY_PROJECT in one.via and one.name not in names:
            yield f"{one.name} is locked, but not asked for any more"
        if not one.hashes:
            yield f"{one.name} {one.version} has no hash"
    if "://" in text or "-url" in text:
        yield "the lock file names an address; packages come from where pip is set to look"


def _of_extras(need: Requirement) -> set[str]:
    """What the extras of a requirement ask for here, by the metadata of what is installed."""
    try:
        lines = requires(need.name) or [] if need.extras else []
    except PackageNotFoundError:
        return set()
    wanted = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name)
        for one in wanted
        if one.marker
        and not one.marker.evaluate({"extra": ""})
        and any(one.marker.evaluate({"extra": extra}) for extra in need.extras)
    }


def main() -> None:
    found = list(mistakes(read_project(), LOCK.read_text()))
    if found:
        sys.exit("\n".join([*found, "requirements/dev.lock does not fit: make lock"]))
    print(f"{len(read_lock(LOCK.read_text()))} locked versions fit pyproject.toml")


if __name__ == "__main__":
    main()
