"""Writes the tables of docs/results/*.md anew from what is stored in results/.

    python benchmarks/studies/pages.py            # make pages
    python benchmarks/studies/pages.py --check    # exit code 1 if a page would change

A table stands between `<!-- table NAME -->` and `<!-- end of table -->`; TABLES says how the one of
a name is made. `fedsieve reproduce NAME --tier TIER --seeds N --write results` stores what recipes
give, the other programs of this folder store what is no recipe.
"""

import argparse
import re
import sys
from pathlib import Path

from tables import TABLES

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def rewritten(page: str, stored: Path = ROOT / "results") -> str:
    """The page with all its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]](stored)}\n\n{match[3]}"

    return MARKED.sub(fill, page)


def main() -> None:
    """Rewrite the pages, or say which would change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    changed = []
    for path in sorted((ROOT / "docs/results").glob("*.md")):
        page = path.read_text()
        if (new := rewritten(page)) != page:
            changed.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(new)
    print(*changed or ["every page is as its results"], sep="\n")
    sys.exit(bool(changed and check))


if __name__ == "__main__":
    main()
