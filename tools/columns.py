"""The table of columns in docs/guide/run.md, from the metrics that are declared.

python tools/columns.py            # writes the table anew

"""

from pathlib import Path

from fedsieve.metrics.rows import COLUMNS, SCORES, Row

PAGE = Path(__file__).parents[1] / "docs/guide/run.md"
START, END = "<!-- columns: python tools/columns.py -->\n", "<!-- end of columns -->\n"


def table() -> str:
    """The columns of a row as a table of Markdown."""
    lines = ["| field | unit | in `result.json` | meaning |", "|---|---|---|---|"]
    for name in Row.__struct_fields__:
        metric = COLUMNS[name]
        total = f"{metric.total}, best" if name in SCORES else metric.total
        lines.append(f"| `{name}` | {metric.unit} | {total} | {metric.about} |")
    return "\n".join(lines) + "\n"


def rewritten(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
