"""Citations of specifications lead to a page and a heading that exist.

A citation is "specification NAME, section N" (or "sections N, M and K", "sections N to M"). Where
the name is left out, it is that of the one specification that the file cites by name; within a page
of docs/specs it is the page itself.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in (ROOT / "docs/specs").glob("*.md") if path.stem != "index"}
PROGRAMS = sorted(
    path
    for folder in ("src", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
)
TEXTS = sorted((ROOT / "docs").rglob("*.md"))
MENTION = re.compile(
    r"(?:\b[Ss]pec(?P<rest>ification)?\b(?: (?P<name>[a-z_]+)(?=, ))?(?:, | )?)?"
    r"(?:\b[Ss]ection(?P<plural>s)? (?P<numbers>\d+(?:(?:,|,? and| to) \d+)*))?"
)


def sections(name: str) -> set[int]:
    """Numbers of the headings of a page."""
    return {int(n) for n in re.findall(r"^## (\d+)\. ", PAGES[name].read_text(), re.MULTILINE)}


def numbers(text: str, *, is_plural: bool) -> set[int]:
    """The sections that "3 to 5 and 7" stands for; after "section" the first number alone."""
    if not is_plural:
        return {int(re.match(r"\d+", text)[0])}
    found = set[int]()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def faults(text: str, page: str | None = None) -> Iterator[str]:
    """What is wrong with the citations of a text; `page` is the specification it belongs to."""
    flat = re.sub(r"\s+(?:# )?", " ", text)
    mentions = [m for m in MENTION.finditer(flat) if m["rest"] or m["numbers"]]
    named = {m["name"] for m in mentions if m["name"] and m["rest"]}
    own = page or (named.pop() if len(named) == 1 else None)
    for mention in mentions:
        name, where = mention["name"] or own, mention[0].strip()
        if mention["name"] and not (mention["rest"] and mention["numbers"]):
            yield f"{where!r}: write 'specification {name}, section N'"
        elif name is None:
            yield f"{where!r}: of which specification? Write 'specification NAME, section N'"
        elif name not in PAGES:
            yield f"{where!r}: there is no docs/specs/{name}.md"
        elif mention["numbers"]:
            cited = numbers(mention["numbers"], is_plural=bool(mention["plural"]))
            for number in sorted(cited - sections(name)):
                yield f"{where!r}: docs/specs/{name}.md has no section {number}"


def test_every_citation_in_programs_leads_to_a_heading():
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in PROGRAMS
        if (wrong := list(faults(path.read_text())))
    }
    assert not found


def test_every_citation_in_the_documentation_leads_to_a_heading():
    found = {}
    for path in TEXTS:
        text = path.read_text()
        if path.stem not in PAGES or path != PAGES[path.stem]:
            full = re.findall(r"[Ss]pecification [a-z_]+, sections?\s+\d[^.;:)]*", text)
            text = "\n\n".join(full)
        page = path.stem if PAGES.get(path.stem) == path else None
        if wrong := list(faults(text, page)):
            found[str(path.relative_to(ROOT))] = wrong
    assert not found


def test_all_pages_are_cited_by_the_source():
    source = " ".join(p.read_text() for p in PROGRAMS if (ROOT / "src") in p.parents)
    assert set(re.findall(r"specification\s+([a-z_]+),\s+section", source)) == set(PAGES)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_sections_are_numbered_without_gaps(name):
    headings = re.findall(r"^## (.*)$", PAGES[name].read_text(), re.MULTILINE)
    assert [h.split(".")[0] for h in headings] == [str(n + 1) for n in range(len(headings))]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("specification flops, section 2", None),
        ("specification\n    flops, sections 1, 3 to 5 and 14", None),
        ("specification flops, section 2. Also section 4, point 99, and (Section 3)", None),
        ("specification flops, section 99", "flops.md has no section 99"),
        ("specification flops, sections 12 to 15", "flops.md has no section 15"),
        ("specification flops, sections 1,\n# 2 and 16", "flops.md has no section 16"),
        ("specification flops, section 2; but section 77", "flops.md has no section 77"),
        ("specification absent, section 1", "there is no docs/specs/absent.md"),
        ("specification flops, 2", "write 'specification flops, section N'"),
        ("spec flops, section 2", "write 'specification flops, section N'"),
        ("as in section 3", "of which specification?"),
        ("as the specification says", "of which specification?"),
        (
            "specification flops, section 2; specification spafl, section 3; section 4",
            "'section 4': of which specification?",
        ),
    ],
)
def test_citations_that_lead_nowhere_are_found(text, fault):
    found = list(faults(text))
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]
