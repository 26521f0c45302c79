"""What a page is made of, as plain data, and the templates that make HTML of it."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsieve.drawing.svg import exact, run_class
from fedsieve.report.figures import Run


class Cell(NamedTuple):
    """A table cell: a number as people read it, with attributes and perhaps a bar below."""

    text: str
    attributes: dict[str, object]
    meter: Markup | None = None
    is_local: bool = False


Content: TypeAlias = str | Run | Cell  # a run is shown as its label beside its colour


class Table(NamedTuple):
    """A table that scrolls within itself; the first cell of each row is its heading."""

    caption: str
    head: Sequence[Content]
    rows: Sequence[Sequence[Content]]
    kind: str | None = None


class Figure(NamedTuple):
    """A picture with a caption, which begins with the label of `run`; or why there is none."""

    picture: Markup | None
    caption: str
    run: Run | None = None
    why: str = ""
    keys: Sequence[tuple[str, str]] = ()  # words and class of each colour


class Grid(NamedTuple):
    """Figures side by side."""

    figures: Sequence[Figure]


class Panels(NamedTuple):
    """Grids of which one is shown at a time, chosen by a button."""

    score: str
    grids: dict[str, Grid]


class Note(NamedTuple):
    """A sentence in small print."""

    text: str


class Listing(NamedTuple):
    """A text to copy."""

    run: Run
    name: str
    text: str
    is_open: bool


Block: TypeAlias = Table | Grid | Panels | Note | Listing  # each has a macro of its name


def cell(
    text: str, value: Any, kind: str | None = None, meter: Markup | None = None, **data: object
) -> Cell:
    """A readable number that carries the exact one, and what tells it from the others."""
    named = {f"data-{name}": v for name, v in {"value": exact(value), **data}.items()}
    return Cell(text, {**named, "class": kind}, meter)


def render(template: str, **values: object) -> str:
    """A template filled in; every text that is not markup is escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedsieve.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["run_class"] = run_class
    return environment
