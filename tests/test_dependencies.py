"""Every import is declared, everything declared is locked by hash, and every licence is listed."""

import ast
import copy
import functools
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import audit
import licences
from locked import LOCK, asked, mistakes, read_lock, read_project

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedsieve"
PROJECT = read_project()
TEXT = LOCK.read_text()

# Asked for by name at run time, with an error that says what to install.
ON_REQUEST = {"IPython", "pandas"}
# Where an extra may be imported at all; these modules are loaded on demand.
HOMES = {"flower": ("deploy/",)}


def imported(path):
    """Names of top-level modules that a file imports, by statement or by `import_module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            given = node.args[0]
            if isinstance(given, ast.Constant):
                yield given.value.partition(".")[0]


@functools.cache
def foreign():
    """Every import of another project's module: (file, module)."""
    ours = sys.stdlib_module_names | {"fedsieve", "compression"} | ON_REQUEST  # zstd, from 3.14 on
    files = sorted(SOURCE.rglob("*.py"))
    return {(p.relative_to(SOURCE).as_posix(), n) for p in files for n in imported(p)} - {
        (p.relative_to(SOURCE).as_posix(), n) for p in files for n in ours
    }


def names(requirements):
    return {canonicalize_name(one.name) for one in requirements}


def test_every_import_is_declared_where_it_is_used():
    homes = packages_distributions()
    plain = names(asked(PROJECT))
    extras = {extra: names(asked(PROJECT, extra)) - plain for extra in HOMES}
    undeclared = []
    for path, module in sorted(foreign()):
        candidates = {canonicalize_name(name) for name in homes.get(module, [module])}
        allowed = plain.union(
            *(more for extra, more in extras.items() if path.startswith(HOMES[extra]))
        )
        if not candidates & allowed:
            undeclared.append(f"{path} imports {module}")
    assert undeclared == []


def test_imports_are_really_read():
    found = foreign()
    assert ("deploy/proxy.py", "uvicorn") in found
    assert ("wire/__init__.py", "typing") not in found
    assert {"torch", "numpy", "httpx", "cryptography", "flwr"} <= {name for _, name in found}


def test_the_lock_file_fits_the_project():
    assert list(mistakes(PROJECT, TEXT)) == []


def test_all_but_torch_and_its_cuda_packages_is_locked_with_hashes():
    lock = read_lock(TEXT)
    assert len(lock) > 100
    assert len(lock) == len(re.findall(r"^[a-z0-9][^ ]*==", TEXT, re.MULTILINE))
    assert sum(len(one.hashes) for one in lock) == TEXT.count("--hash=sha256:")
    assert [n for n in (one.name for one in lock) if re.match("torch$|nvidia|cuda|triton", n)] == []


def changed(**tables):
    project = copy.deepcopy(PROJECT)
    for name, lines in tables.items():
        if name == "dependencies":
            project["project"]["dependencies"] += lines
        else:
            project["project"]["optional-dependencies"][name] += lines
    return project


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"dependencies": ["left-pad>=1"]}, "left-pad>=1 is not locked"),
        ({"flower": ["left-pad"]}, "left-pad is not locked"),
        ({"dev": ["msgspec>=999"]}, "msgspec is locked at .*, which is not >=999"),
    ],
)
def test_a_new_dependency_without_a_new_lock_is_found(tables, said):
    (only,) = mistakes(changed(**tables), TEXT)
    assert re.fullmatch(said, only)


def test_what_is_not_asked_for_any_more_is_found():
    project = copy.deepcopy(PROJECT)
    project["project"]["dependencies"].remove("msgspec>=0.19")
    assert list(mistakes(project, TEXT)) == ["msgspec is locked, but not asked for any more"]


def test_a_lock_without_a_hash_or_with_an_address_is_found():
    lines = TEXT.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("msgspec=="))
    end = next(i for i in range(start + 1, len(lines)) if "--hash" not in lines[i])
    bare = "".join([*lines[: start + 1], *lines[end:]])
    assert [word for word in mistakes(PROJECT, bare) if "msgspec" in word and "no hash" in word]
    (only,) = mistakes(PROJECT, "--index-url https://example.org\n" + TEXT)
    assert only.startswith("the lock file names an address")


def test_what_builds_the_package_is_locked():
    build = names(map(Requirement, PROJECT["build-system"]["requires"]))
    assert build <= {one.name for one in read_lock(TEXT)}


def test_licences_are_those_of_what_is_needed():
    rows = licences.direct(PROJECT)
    brought = licences.indirect(rows, read_lock(TEXT))
    needed = {row.name for row in rows} | brought.keys()
    page = licences.PAGE.read_text()
    assert {"torch", "flwr", "tensorboardx", "h11", "sympy"} <= needed
    assert not {"pytest", "mypy", "mkdocs", "uv-build"} & needed
    assert list(licences.differences(page, needed)) == []
    assert list(licences.differences(page, needed - {"h11"} | {"left-pad"})) == [
        "left-pad is not on the page",
        "h11 is on the page and not needed",
    ]


def vulnerable(name="left-pad", fixes=("2.0",)):
    found = {"id": "CVE-1", "fix_versions": list(fixes)}
    return {"dependencies": [{"name": name, "version": "1.0", "vulns": [found]}]}


CLEAN = {"dependencies": [{"name": "left-pad", "version": "1.0", "vulns": []}]}


@pytest.mark.parametrize(
    ("known", "answer", "must_run", "said"),
    [
        (None, None, False, None),  # no database
        (None, None, True, audit.SKIPPED),
        (CLEAN, CLEAN, True, audit.SKIPPED),  # one that does not know what everybody knows
        (vulnerable("django"), CLEAN, True, None),
        (vulnerable("django"), vulnerable(), False, "left-pad 1.0: CVE-1, not in 2.0"),
        (vulnerable("django"), vulnerable(fixes=()), False, "left-pad 1.0: CVE-1, no fix yet"),
    ],
)
def test_an_audit_fails_for_what_is_known_and_not_for_silence(
    monkeypatch, capsys, known, answer, must_run, said
):
    def ask(pins, *options):
        found = known if list(pins) == [audit.KNOWN_BAD] else answer
        if found is None:
            raise audit.AuditError
        return found

    monkeypatch.setattr(audit, "ask", ask)
    arguments = ["--must-run"] * must_run
    if said is None:
        audit.main(arguments)
        assert capsys.readouterr().out.startswith(audit.SKIPPED if known is None else "no known")
    else:
        with pytest.raises(SystemExit, match=re.escape(said)):
            audit.main(arguments)


def test_an_audit_that_breaks_off_is_no_silence(monkeypatch):
    def ask(pins, *options):
        if list(pins) == [audit.KNOWN_BAD]:
            return vulnerable("django")
        raise audit.AuditError("duplicate requirements")

    monkeypatch.setattr(audit, "ask", ask)
    with pytest.raises(audit.AuditError, match="duplicate"):
        audit.main([])


def test_no_list_for_the_audit_has_a_name_twice():
    assert audit.lists(["a==1", "b==1", "a==2", "a==3"]) == [["a==1", "b==1"], ["a==2"], ["a==3"]]


def test_what_is_audited_has_torch():
    assert any(pin.startswith("torch==") for pin in audit.versions())


def test_loading_what_could_run_code_is_refused_by_the_linter():
    for line in ("import pickle\n", "import torch\n\nprint(torch.load('x'))\n"):
        command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "-"]
        done = subprocess.run(
            command, input=line, capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert "TID251" in done.stdout
