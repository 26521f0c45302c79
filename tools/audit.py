"""Known vulnerabilities of every locked version and of torch, by pip-audit from the OSV database.

    python tools/audit.py [--must-run]

Where the database does not answer it says so in a line, which is a failure with --must-run alone.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from locked import LOCK, ROOT, read_lock

# A version with known vulnerabilities that nobody here installs: an answer without it is no answer.
KNOWN_BAD = "django==1.2"
SKIPPED = "vulnerabilities: not looked for, the database (OSV) does not answer"

Answer = Mapping[str, Any]


class AuditError(Exception):
    """pip-audit gave no answer; its own words."""


def versions() -> list[str]:
    """What is audited: all that is locked, on any platform, and the torch of the Makefile."""
    torch = re.findall(r"^TORCH := (torch==\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [*(f"{one.name}=={one.version}" for one in read_lock(LOCK.read_text())), *torch]


def lists(pins: Iterable[str]) -> list[list[str]]:
    """The same versions in as few lists as hold each name only once, as pip-audit wants them."""
    found: list[dict[str, str]] = []
    for pin in pins:
        name = pin.partition("==")[0]
        place = next((names for names in found if name not in names), None)
        if place is None:
            found.append(place := {})
        place[name] = pin
    return [list(names.values()) for names in found]


def ask(pins: Iterable[str], *options: str) -> Answer:
    """What pip-audit says of these versions; an AuditError if it does not."""
    if importlib.util.find_spec("pip_audit") is None:
        sys.exit("pip-audit is not installed: make setup")
    with tempfile.TemporaryDirectory() as folder:
        wanted, out = Path(folder) / "pins.txt", Path(folder) / "out.json"
        wanted.write_text("\n".join(pins) + "\n")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(wanted)]
        command += ["--no-deps", "--disable-pip", "--vulnerability-service", "osv"]
        command += ["--format", "json", "--output", str(out), "--progress-spinner", "off"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if not out.exists():
            raise AuditError(done.stderr.strip())
        answer: Answer = json.loads(out.read_text())
        return answer


def answers(*options: str) -> bool:
    """Whether the database is there and knows what everybody knows."""
    try:
        return bool(vulnerabilities(ask([KNOWN_BAD], *options)))
    except AuditError:
        return False


def vulnerabilities(answer: Answer) -> list[str]:
    """A line for each: package, version, number, and the versions without it."""
    return [
        f"{one['name']} {one['version']}: {found['id']}, "
        + (f"not in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "no fix yet")
        for one in answer["dependencies"]
        for found in one.get("vulns", ())
    ]


def main(arguments: list[str]) -> None:
    must_run, options = "--must-run" in arguments, [a for a in arguments if a != "--must-run"]
    pins = versions()
    if not answers(*options):
        sys.exit(SKIPPED) if must_run else print(SKIPPED)
    elif found := [line for some in lists(pins) for line in vulnerabilities(ask(some, *options))]:
        sys.exit("\n".join([*found, "vulnerable versions are locked: make lock UPGRADE=--upgrade"]))
    else:
        print(f"no known vulnerability in {len(pins)} versions")


if __name__ == "__main__":
    main(sys.argv[1:])
