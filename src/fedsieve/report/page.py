"""One self-contained page from finished runs: nothing is fetched, everything is in the file."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedsieve.core.errors import ConfigError
from fedsieve.engine import disk
from fedsieve.report import details, markup, sections
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
    return markup.render(
        "page.html", title=_title(runs), runs=runs, top=overview(runs), warnings=warnings(runs),
        parts=parts, style=_static("page.css"), script=_static("page.js"), digest=_digest,
    )  # fmt: skip


def _title(runs: Sequence[Run]) -> str:
    data = ", ".join(dict.fromkeys(run.record.summary.dataset for run in runs))
    methods = ", ".join(dict.fromkeys(run.record.summary.method for run in runs))
    return f"{methods} on {data}" if len(methods) < 60 else f"{len(runs)} runs on {data}"


def _static(name: str) -> str:
    return (resources.files("fedsieve.report") / "static" / name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
