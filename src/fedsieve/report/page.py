"""One self-contained page from finished runs: nothing is fetched, everything is in the file."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedsieve.core.errors import ConfigError
from fedsieve.drawing.html import Markup, join, note, tag
from fedsieve.engine import disk
from fedsieve.report import details, sections
from fedsieve.report.checks import warnings
from fedsieve.report.figures import Run, read_runs
from fedsieve.report.overview import overview


def write(paths: Sequence[Path], out: Path, *, with_partition: bool = True) -> Path:
    """Write the page of these run folders to `out`, whole or not at all.

    Args:
        paths: run folders, 1 to 24.
        out: the file; it is replaced if it is there.
        with_partition: load the data again to draw who holds which classes.

    Raises:
        ConfigError: too many runs, or `out` is a folder or lies in a missing one.
        DataError: a folder is not one of a finished run.
    """
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"report: {out} cannot be written. Give a file in an existing folder.")
    text = render(read_runs(paths), with_partition=with_partition)
    disk.write(out, text.encode(errors="replace"))
    return out


def render(runs: Sequence[Run], *, with_partition: bool = True) -> str:
    """The page as text."""
    shares = details.partition(runs, is_wanted=with_partition)
    parts = (
        ("scores", "Curves", "scores over rounds, bytes and computation", sections.scores(runs)),
        ("results", "All figures", "of result.json", sections.summary(runs)),
        ("settings", "Settings", "that differ, and each method's own", sections.differences(runs)),
        ("density", "Density and loss", "over rounds", sections.density(runs)),
        ("layers", "Layers", "density of each", sections.layers(runs)),
        ("clients", "Clients", "how scores spread over them", details.clients(runs)),
        ("partition", "Partition", "who holds what", shares),
        ("bytes", "Bytes", "headers, masks and values", details.byte_parts(runs)),
        ("masks", "Supports", "how they change over rounds", details.supports(runs)),
        ("config", "Configuration", "to run it again", details.configuration(runs)),
        ("versions", "Versions", "of the programs", details.versions(runs)),
    )
    more = [
        tag("details",
            tag("summary", tag("h2", title), tag("span", words, class_="note")),
            content, id=name, class_="part")
        for name, title, words, content in parts
    ]  # fmt: skip
    opener = tag("button", "Open all", type="button", id="open", aria_pressed="false")
    body = join(
        tag("a", "Skip to the answer", href="#answer", class_="skip"),
        tag("header", tag("h1", _title(runs)), _theme_button()),
        tag("main", overview(runs), _legend(runs), _warnings(runs),
            tag("div", tag("h2", "Details"), opener, class_="more"), *more),
        tag("footer", "Made by fedsieve. Point at a figure, tap it, or focus it and use the "
            "arrow keys to read its values."),
        tag("div", id="tip", role="status", aria_live="polite", hidden=True),
    )  # fmt: skip
    return "<!DOCTYPE html>\n" + tag("html", _head(runs), _body(body), lang="en") + "\n"


def _head(runs: Sequence[Run]) -> Markup:
    style, script = _static("page.css"), _static("page.js")
    # Only this style and this script may run, whatever the files of a run hold.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{_title(runs)} - fedsieve"),
        tag("style", style),
    )


def _body(content: Markup) -> Markup:
    return tag("body", content, tag("script", _static("page.js")))


def _title(runs: Sequence[Run]) -> str:
    data = ", ".join(dict.fromkeys(run.record.summary.dataset for run in runs))
    methods = ", ".join(dict.fromkeys(run.record.summary.method for run in runs))
    return f"{methods} on {data}" if len(methods) < 60 else f"{len(runs)} runs on {data}"


def _theme_button() -> Markup:
    return tag("button", "Dark", type="button", id="theme", aria_pressed="false",
               aria_label="dark colours")  # fmt: skip


def _legend(runs: Sequence[Run]) -> Markup | None:
    if len(runs) < 2:
        return None
    buttons = [
        tag("button", sections.name_of(run), type="button", data_toggle=run.number,
            aria_pressed="true")
        for run in runs
    ]  # fmt: skip
    return tag("div", *buttons, class_="legend", role="group", aria_label="show or hide runs")


def _warnings(runs: Sequence[Run]) -> Markup:
    found = warnings(runs)
    if not found:
        return note("No warnings: every run finished, all replies were used, all figures add up.")
    listed = tag("ul", *(tag("li", text) for text in found))
    heading = tag("h2", f"{len(found)} warning{'s' * (len(found) > 1)}", id="warnings-title")
    return tag("section", heading, listed, class_="warnings", aria_labelledby="warnings-title")


def _static(name: str) -> Markup:
    return Markup((resources.files("fedsieve.report") / "static" / name).read_text("utf-8"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
