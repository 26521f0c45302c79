"""`fedsieve watch`: a running job on the terminal, from its folder alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedsieve.core.errors import DataError
from fedsieve.drawing.units import duration, size
from fedsieve.metrics.rows import COLUMNS, SCORES, Row, last, scope

if TYPE_CHECKING:
    from fedsieve.report.watch import Follower, Seen

LABEL, NUMBER, RANGE = 17, 8, 22  # columns beside a curve


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder: what `fedsieve run` got as --out.")
    ],
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
) -> None:
    """Follow a running job: scores, bytes, density, time left, and curves over its rounds.

    RUN is the folder that `fedsieve run` got as `--out`. Its files are read and nothing is
    written, so it may be a mounted folder of another machine. A run that has not begun is waited
    for. Ends when the run does, or with `Ctrl-C`, which leaves the run alone. Without a terminal
    it prints one line per round from the newest one on.

    ```
    fedsieve run --rounds 500 --out runs/long &
    fedsieve watch runs/long
    fedsieve watch runs/long --once
    ```
    """
    from fedsieve.cli.progress import print_summary
    from fedsieve.report.watch import Follower

    follower = Follower(folder.parent if folder.is_file() else folder)
    console = Console()
    seen = follower.look()
    if once:
        if not seen.rows and not seen.config:
            raise DataError(f"{seen.note or follower.path}: no run to show. Is it --out of a run?")
        typer.echo(picture(seen, follower.folder, console.width))
        return
    try:
        is_drawn = console.is_terminal
        seen = _live(follower, every, console) if is_drawn else _lines(follower, every)
    except KeyboardInterrupt:
        return
    if seen.summary is not None:
        print_summary(seen.summary, follower.folder)


def picture(seen: Seen, folder: Path, width: int, waited: float = 0.0) -> str:
    """All that is known of a run, in a few lines no wider than `width`."""
    rows = seen.rows
    parts = [title(seen, folder), standing(seen)]
    if seen.note:
        parts.append(f"{seen.note}; waiting" if seen.summary is None else seen.note)
    elif seen.summary is None and waited >= 1:
        parts.append(f"round {seen.done + 1} goes on for {duration(waited)}")
    drawn = [_curve(name, rows, width) for name, metric in COLUMNS.items() if metric.is_watched]
    return "\n".join(part[:width] for part in [*parts, *filter(None, drawn)])


def title(seen: Seen, folder: Path) -> str:
    """What runs; the folder's name while its configuration is not there."""
    stored = seen.config
    if not stored:
        return str(folder)
    return (
        f"{stored.get('method')} on {stored.get('dataset')}, {stored.get('model')}, "
        f"{stored.get('clients')} clients ({stored.get('partition')}), "
        f"{stored.get('cohort')} a round"
    )


def standing(seen: Seen) -> str:
    """How far a run is, what it has sent and how long it will take."""
    rows = seen.rows
    of = "" if seen.total is None else f"/{seen.total}"
    parts = [f"round {seen.done}{of}", _sent(rows)]
    if rows:
        parts += _figures(seen)
    if seen.summary is not None:
        parts.append(seen.summary.status)
    elif seen.seconds_left is not None:
        parts.append(f"{duration(seen.seconds_left)} left")
    return "  ".join(parts)


def line(seen: Seen) -> str:
    """A run's newest round in one line."""
    rows = seen.rows
    latest = {scope(name): last(rows, name) for name in SCORES}
    scores = [f"{label} {value:.4f}" for label, value in latest.items() if value is not None]
    of = "" if seen.total is None else f"/{seen.total}"
    parts = [f"round {seen.done}{of}", *scores, _sent(rows), f"density {rows[-1].density:.3f}"]
    parts += _figures(seen)
    if seen.seconds_left is not None:
        parts.append(f"{duration(seen.seconds_left)} left")
    return "  ".join(parts)


def _sent(rows: list[Row]) -> str:

    up, down = sum(row.up_bytes for row in rows), sum(row.down_bytes for row in rows)
    return f"up {size(up)} down {size(down)}"


def _figures(seen: Seen) -> list[str]:

    failed = sum(row.failed for row in seen.rows)
    pace = f"{duration(seen.seconds_per_round or 0.0)} a round"
    return [pace, f"failed {failed}"] if failed else [pace]


def _curve(name: str, rows: list[Row], width: int) -> str:
    from fedsieve.report.watch import sparkline

    metric = COLUMNS[name]
    unit, label = (1e6, f"{metric.label}, MB") if metric.unit == "bytes" else (1, metric.label)
    known = [value / unit for row in rows if (value := getattr(row, name)) is not None]
    if not known:
        return ""
    drawn = sparkline(known, max(width - LABEL - NUMBER - RANGE - 1, 8))
    reach = f"{min(known):.4g} to {max(known):.4g}"
    return f"{label:<{LABEL}}{known[-1]:<{NUMBER}.4g} {drawn}  {reach}"


def _live(follower: Follower, every: float, console: Console) -> Seen:
    """Draw the picture anew at every look, in place."""
    shown = Text("", no_wrap=True, overflow="crop")
    since, before = time.monotonic(), -1
    with Live(shown, console=console, auto_refresh=False) as live:
        while True:
            seen = follower.look()
            if seen.done != before:
                since, before = time.monotonic(), seen.done
            waited = time.monotonic() - since
            shown.plain = picture(seen, follower.folder, console.width, waited)
            live.refresh()
            if seen.summary is not None:
                return seen
            time.sleep(every)


def _lines(follower: Follower, every: float) -> Seen:
    """Print the newest round, then every one that follows it."""
    note, shown, is_first = "", 0, True
    while True:
        seen = follower.look()
        if seen.note and seen.note != note:
            typer.echo(f"{seen.note}; waiting")
        note = seen.note
        if seen.done < shown:
            typer.echo(f"resumed after round {seen.done}")
            shown = seen.done
        if seen.rows and is_first:
            typer.echo(title(seen, follower.folder))
            shown, is_first = seen.done - 1, False
        for count, row in enumerate(seen.rows, start=1):
            if row.round > shown:
                typer.echo(line(seen._replace(rows=seen.rows[:count])))
        shown = seen.done
        if seen.summary is not None:
            return seen
        time.sleep(every)
