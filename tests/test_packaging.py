"""What is shipped: metadata that can be checked without building."""

import re
import tomllib
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_page_of_a_package_index_has_no_link_that_leads_nowhere():
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / part["path"]).read_text() for part in hook["fragments"])
    assert "](docs/" in text
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link] == []
    assert [link for link in re.findall(r'(?:src|href)="([^"]*)"', text) if "://" not in link] == []


def test_what_the_source_distribution_names_is_there():
    named = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/docs", "/CONTRIBUTING.md"} <= set(named)
    assert all((ROOT / path[1:]).exists() for path in named)


def test_the_citation_is_of_this_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text()
    cited = dict(re.findall(r"^(title|version|license): (.*)$", text, re.MULTILINE))
    project = PROJECT["project"]
    assert cited == {
        "title": project["name"],
        "version": project["version"],
        "license": project["license"],
    }


def test_caps_for_flower_are_not_asked_of_everybody():
    plain = [text.split("#")[0] for text in PROJECT["project"]["dependencies"]]
    assert not any("<" in text for text in plain if text.startswith(("typer", "rich", "click")))


def test_the_wheel_has_the_files_that_pages_are_made_of():
    included = WheelBuilder(str(ROOT)).recurse_included_files()
    shipped = {Path(one.distribution_path) for one in included}
    report = Path("fedsieve", "report")
    for folder, names in {"static": ("page.css", "page.js"), "templates": ("page.html",)}.items():
        there = {report / folder / p.name for p in (ROOT / "src" / report / folder).iterdir()}
        assert {report / folder / name for name in names} <= there <= shipped
