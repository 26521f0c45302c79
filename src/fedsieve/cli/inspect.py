"""`fedsieve inspect`: what the bytes of a message, or of a whole run, are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fedsieve.core.errors import DataError

if TYPE_CHECKING:
    from fedsieve.metrics.bytes import Sent, Traffic
    from fedsieve.wire.inspect import Inspection


def inspect_path(
    path: Annotated[Path, typer.Argument(help="A kept message (.frame) or a run folder.")],
    svg: Annotated[
        Path | None,
        typer.Option(help="Folder for pictures of a matching: client neurons by global atoms."),
    ] = None,
) -> None:
    """Show what every byte of a message is, or where the bytes of a run went.

    Keep messages with `fedsieve run --out DIR --save-messages 1,10`. A run that matches neurons
    also shows which client uses which global atom, and how good each client's network is.
    """
    from fedsieve.cli.matching import show_matching
    from fedsieve.jobs.inspect import is_matching
    from fedsieve.wire.inspect import inspect, read_frame

    if path.is_dir():
        _run(path)
        if is_matching(path):
            show_matching(path, svg)
        return
    frame = read_frame(path)
    typer.echo(f"round {frame.round}, client {frame.client}, {frame.direction}")
    _message(inspect(frame))


def _message(message: Inspection) -> None:
    console = Console()
    table = Table("part", "bytes", "share", box=None)
    around = message.header_bytes - message.announced_bytes
    for name, size in (
        ("header and checksum", around),
        ("announced schema", message.announced_bytes),
        ("masks", message.mask_bytes),
        (f"values ({message.compression})", message.value_bytes),
        ("all", message.total_bytes),
    ):
        table.add_row(name, f"{size:,}", f"{size / message.total_bytes:.1%}")
    console.print(table)
    limit, sent = message.limit_bytes, message.total_bytes
    typer.echo(
        f"limit {limit:,.0f} bytes, {sent / limit:.3f} of it" if limit else "nothing to send"
    )
    columns = ("field", "tensor", "size", "sent", "density", "bytes", "bits each", "limit")
    tensors = Table(*columns, box=None)
    for line in message.lines:
        spent, each = line.mask_bytes + line.value_bytes, max(line.sent, 1)
        figures = (
            f"{line.size:,}",
            f"{line.sent:,}",
            f"{line.sent / max(line.size, 1):.4f}",
            f"{spent:,.0f}",
            f"{8 * spent / each:.2f}",
            f"{8 * line.limit_bytes / each:.2f}",
        )
        tensors.add_row(line.field, line.tensor, *figures)
    console.print(tensors)


def _run(folder: Path) -> None:
    from fedsieve.engine.records import complete_lines
    from fedsieve.metrics.bytes import Sent

    path = folder / "messages.jsonl"
    if not path.exists():
        raise DataError(f"{folder}: no messages.jsonl there; is it a run folder?")
    by_round: defaultdict[int, list[Sent]] = defaultdict(list)
    try:
        for text in complete_lines(path):
            message = msgspec.json.decode(text, type=Sent)
            by_round[message.round].append(message)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{path}: not a readable list of messages: {error}.") from error
    everything = [message for messages in by_round.values() for message in messages]
    table = Table(
        "round", "way", "messages", "bytes", "header", "masks", "values", "paper", box=None
    )
    shown = sorted(by_round)
    for number in dict.fromkeys([*shown[:2], *shown[len(shown) // 2 :][:1], *shown[-1:]]):
        _rows(table, str(number), by_round[number])
    _rows(table, "all", everything)
    Console().print(table)
    frames = sorted((folder / "messages").glob("*.frame"))
    if frames:
        typer.echo(f"{len(frames)} messages kept, e.g. fedsieve inspect {frames[0]}")


def _rows(table: Table, name: str, messages: list[Sent]) -> None:
    from fedsieve.metrics.bytes import total

    for direction in ("down", "up"):
        traffic: Traffic = total(messages, direction)
        figures = (
            sum(m.direction == direction for m in messages),
            traffic.total_bytes,
            traffic.header_bytes,
            traffic.mask_bytes,
            traffic.value_bytes,
            traffic.paper_bytes,
        )
        table.add_row(name, direction, *(f"{figure:,}" for figure in figures))
