"""HTML from Python: elements that escape what they hold, and numbers as people write them."""

import html
import math
from typing import Any

import msgspec


class Markup(str):
    """Text that is HTML already; every other text is escaped on its way into an element."""

    __slots__ = ()


VOID = frozenset({"meta", "input", "br", "rect", "line", "path"})
MISSING = "–"


def escape(value: object) -> Markup:
    """Text as HTML; Markup stays as it is."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(*parts: object) -> Markup:
    """Parts one after the other, escaped where they are not Markup."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def tag(element: str, *children: object, **attributes: object) -> Markup:
    """An element; `class_` and `data_value` become `class` and `data-value`, None leaves out."""
    text = "".join(
        f" {_name(name)}" if value is True else f' {_name(name)}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if element in VOID and not children:
        return Markup(f"<{element}{text}/>")
    return Markup(f"<{element}{text}>{join(*children)}</{element}>")


def exact(value: Any) -> str:
    """A value in full, as JSON, for a data attribute."""
    return msgspec.json.encode(value).decode()


def table(head: list[object], rows: list[list[object]], caption: str, class_: str = "") -> Markup:
    """A table that scrolls within itself; a cell that is a <td> or <th> already stays one."""
    lines = [tag("tr", *(_cell(cell, is_head=i == 0) for i, cell in enumerate(r))) for r in rows]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(_cell(cell, is_head=True, scope="col") for cell in head))),
        tag("tbody", *lines),
        class_=class_ or None,
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def cell(text: object, value: Any, **attributes: object) -> Markup:
    """A table cell of a readable figure that carries the exact one."""
    return tag("td", text, data_value=exact(value), **attributes)


def note(*text: object) -> Markup:
    return tag("p", *text, class_="note")


def share(value: float | None, digits: int = 1) -> str:
    """0.8507 as 85.1 %."""
    return MISSING if value is None else f"{100 * value:.{digits}f} %"


def score(value: float | None, kind: str) -> str:
    """An accuracy or F1 in per cent; R2, which may be negative, as it is."""
    if value is None:
        return MISSING
    return f"{value:.3f}" if kind == "R2" else share(value)


def size(count: float) -> str:
    """Bytes in kB, MB (10^6) or GB."""
    for limit, unit, digits in ((1e9, "GB", 2), (1e6, "MB", 2), (1e3, "kB", 1)):
        if count >= limit:
            return f"{count / limit:.{digits}f} {unit}"
    return f"{count:.0f} B"


def large(count: float) -> str:
    """A large number with its power of thousand: 5.12 G."""
    if count < 1000:
        return f"{count:.3g}"
    power = min(int(math.log10(count) / 3), 6)
    return f"{_short(count / 1000**power)} {' kMGTPE'[power]}"


def number(value: float) -> str:
    """A tick's number without needless digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _cell(value: object, *, is_head: bool, scope: str = "row") -> Markup:
    if isinstance(value, Markup) and value.startswith(("<td", "<th")):
        return value
    return tag("th", value, scope=scope) if is_head else tag("td", value)
