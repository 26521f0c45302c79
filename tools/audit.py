"""Known vulnerabilities of every locked version and of torch, by pip-audit from the OSV database.

    python tools/audit.py [--must-run]

Where the database does not answer it says so in a line, which is a failure with --must-run alone.
"""

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


def versions() -> list[str]:
    """What is audited: all that is locked, on any platform, and the torch of the Makefile."""
    torch = re.findall(r"^TORCH := (torch==\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [*(f"{one.name}=={one.version}" for one in read_lock(LOCK.read_text())), *torch]


def ask(pins: Iterable[str], *options: str) -> Answer | None:
    """What pip-audit says of these versions; None if the database did not answer."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, out = Path(folder) / "pins.txt", Path(folder) / "out.json"
        wanted.write_text("\n".join(pins) + "\n")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(wanted)]
        command += ["--no-deps", "--disable-pip", "--vulnerability-service", "osv"]
        command += ["--format", "json", "--output", str(out), "--progress-spinner", "off"]
        subprocess.run([*command, *options], capture_output=True, check=False)  # noqa: S603 - our own
        answer: Answer | None = json.loads(out.read_text()) if out.exists() else None
        return answer


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
    known = ask([KNOWN_BAD], *options)
    pins = versions()
    answer = ask(pins, *options) if known and vulnerabilities(known) else None
    if answer is None:
        sys.exit(SKIPPED) if must_run else print(SKIPPED)
    elif found := vulnerabilities(answer):
        sys.exit("\n".join([*found, "vulnerable versions are locked: make lock UPGRADE=--upgrade"]))
    else:
        print(f"no known vulnerability in {len(pins)} versions")


if __name__ == "__main__":
    main(sys.argv[1:])
