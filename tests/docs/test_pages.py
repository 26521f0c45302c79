"""Tables of docs/results are made of what is stored in results/, and of nothing else."""

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest

from fedsieve.core.errors import DataError
from fedsieve.recipes import results
from fedsieve.recipes.recipe import registered

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/results").glob("*.md"))
FILES = sorted((ROOT / "results").glob("*/*.jsonl"))


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks/studies")
    return importlib.import_module("pages")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_the_tables_of_its_results(pages, path):
    page = path.read_text()
    assert "<!-- table " in page
    assert pages.rewritten(page) == page, "`make pages` writes it anew"


def test_every_table_stands_on_one_page(pages):
    text = "".join(path.read_text() for path in PAGES)
    assert sorted(re.findall(r"<!-- table (\w+) -->", text)) == sorted(pages.TABLES)
    assert text.count("<!-- end of table -->") == len(pages.TABLES)


def test_a_changed_figure_or_table_is_noticed(pages, tmp_path):
    stored = tmp_path / "results"
    shutil.copytree(ROOT / "results", stored)
    page = (ROOT / "docs/results/defaults.md").read_text()
    path = stored / "defaults/digits.jsonl"
    head, first, *rest = path.read_text().splitlines()
    line = json.loads(first)
    line["figures"]["global_accuracy"] = 0.123
    path.write_text("\n".join([head, json.dumps(line), *rest]))
    assert "0.123" in pages.rewritten(page, stored)
    assert pages.rewritten(page.replace("| fedavg |", "| FEDAVG |", 1)) == page
    path.unlink()
    with pytest.raises(DataError, match=r"digits\.jsonl: not a file of results"):
        pages.rewritten(page, stored)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_stored_results_say_how_they_were_made_and_belong_to_rows(path):
    head = json.loads(path.read_text().splitlines()[0])
    assert {"command", "commit", "version", "machine"} <= set(head)
    lines = results.read(path)
    assert lines
    assert all(("figures" in line) != ("stopped" in line) for line in lines)
    recipe = registered().get(path.parent.name)
    if recipe is not None:
        labels = {row.label for row in recipe.rows_of(path.stem)}
        assert {line["row"].split(": ")[0] for line in lines} <= labels
