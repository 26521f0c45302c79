"""What a page shows of a run, as numbers: read from its folder and worked out."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from fedsieve.core.errors import ConfigError, DataError, FedsieveError
from fedsieve.core.options import spell
from fedsieve.data.partitions.partition import Share, describe
from fedsieve.engine.records import kept_supports
from fedsieve.jobs.api import one_thread
from fedsieve.jobs.job import split_data
from fedsieve.jobs.library import Record, read_run
from fedsieve.metrics.bytes import Sent, Traffic
from fedsieve.report.labels import labels
from fedsieve.wire.inspect import inspect, read_frame

MAX_RUNS = 24
MAX_FRAMES = 8  # taken apart, in each direction
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
Direction = Literal["up", "down"]
T = TypeVar("T")
Stored: TypeAlias = npt.NDArray[np.uint8]


class Run(NamedTuple):
    """A run on a page: its place decides colour and dash, its label tells it from the others."""

    number: int
    label: str
    record: Record
    settings: dict[str, str]
    config_text: str
    sent: dict[Direction, Traffic]


class TensorBytes(NamedTuple):
    """One tensor in the kept messages of one direction: means over them."""

    direction: Direction
    field: str
    tensor: str
    size: int
    sent: float
    mask_bytes: float
    value_bytes: float
    limit_bytes: float


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders.

    Raises:
        ConfigError: none or too many.
        DataError: a folder is not one of a finished run.
    """
    if not 1 <= len(paths) <= MAX_RUNS:
        raise ConfigError(f"report: {len(paths)} runs given, 1 to {MAX_RUNS} fit on a page.")
    records = [read_run(path) for path in paths]
    settings = [_settings(record) for record in records]
    names = _labels(records)
    texts = [(path / "config.toml").read_text(errors="replace") for path in paths]
    sent = [traffic(path) for path in paths]
    columns = zip(names, records, settings, texts, sent, strict=True)
    return [Run(i, *column) for i, column in enumerate(columns)]


def differing(settings: Sequence[dict[str, str]]) -> list[str]:
    """Names of settings that are not the same in all runs."""
    names = dict.fromkeys(name for table in settings for name in table)
    return [name for name in names if len({table.get(name) for table in settings}) > 1]


def thinned(values: Sequence[T], heights: Sequence[float], most: int) -> list[T]:
    """At most about `most` values: the ends, and the lowest and highest of every stretch."""
    if len(values) <= most:
        return list(values)
    edges = np.linspace(0, len(values), most // 2).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        part = np.asarray(heights[start:stop])
        kept |= {int(start + part.argmin()), int(start + part.argmax())}
    return [values[i] for i in sorted(kept)]


def spread(values: Sequence[T], most: int) -> list[T]:
    """At most `most` values, evenly spread, both ends among them."""
    if len(values) <= most:
        return list(values)
    return [values[i] for i in np.linspace(0, len(values) - 1, most).round().astype(int)]


def overlap(folder: Path) -> tuple[list[int], list[list[float]]]:
    """Kept rounds and the soft IoU of the global model's gates in them.

    That is sum min(p, q) / sum max(p, q); |A & B| / |A | B| where gates are 0 or 1: a support.
    """
    paths = kept_supports(folder)
    stored = [np.frombuffer(path.read_bytes(), np.uint8) for path in paths]
    whole = [p for p in zip(paths, stored, strict=True) if len(p[1]) == len(stored[-1])]
    if not whole:
        return [], []
    is_packed = paths[-1].suffix == ".bits"
    gates = [p[1] for p in whole]
    common = np.array([[_common(p, q, is_packed=is_packed) for q in gates] for p in gates])
    kept = common.diagonal()
    union = kept[:, None] + kept[None, :] - common
    ratio = np.where(union == 0, 1.0, common / np.maximum(union, 1))
    return [int(path.stem) for path, _ in whole], ratio.tolist()


def _common(p: Stored, q: Stored, *, is_packed: bool) -> int:
    if is_packed:
        return int(np.bitwise_count(p & q).sum())
    return int(np.minimum(p, q).sum(dtype=np.int64))


def traffic(folder: Path) -> dict[Direction, Traffic]:
    """All messages of a run added up, by direction; DataError if they cannot be read."""
    sums: dict[Direction, Traffic] = {"up": Traffic(), "down": Traffic()}
    path = folder / "messages.jsonl"
    if not path.exists():
        return sums
    decoder = msgspec.json.Decoder(Sent)
    try:
        with path.open("rb") as file:
            for line in file:
                sent = decoder.decode(line)
                total = sums[sent.direction]
                for name in Traffic.__struct_fields__:
                    setattr(total, name, getattr(total, name) + getattr(sent, name))
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{path}: not a readable list of messages: {error}.") from error
    return sums


def tensor_bytes(folder: Path) -> tuple[int, list[TensorBytes]]:
    """How many kept messages were taken apart, and what every tensor cost in them."""
    read, sums = 0, defaultdict[tuple[Any, ...], list[Any]](list)
    for direction in ("down", "up"):
        frames = sorted((folder / "messages").glob(f"*-{direction}.frame"))
        for path in spread(frames, MAX_FRAMES):
            read += 1
            for line in inspect(read_frame(path)).lines:
                sums[direction, line.field, line.tensor, line.size].append(
                    (line.sent, line.mask_bytes, line.value_bytes, line.limit_bytes)
                )
    means = {key: np.mean(lines, axis=0).tolist() for key, lines in sums.items()}
    return read, [TensorBytes(*key, *mean) for key, mean in means.items()]


def shares(record: Record) -> list[Share] | str:
    """Who holds what, from splitting the data again; or why that cannot be shown."""
    if record.config.dataset.startswith("python:"):
        return "The data set is made by code, which a report does not run."
    try:
        with one_thread():
            data, _, parts = split_data(record.config)
    except (FedsieveError, OSError) as error:
        return f"The data is not at hand: {error}"
    if parts.fingerprint != record.summary.partition_fingerprint:
        return (
            f"The data at hand splits into {parts.fingerprint}, the run had "
            f"{record.summary.partition_fingerprint}: it is not the same data."
        )
    return describe(parts, data)


def quantiles(values: Sequence[float]) -> list[float]:
    return [float(q) for q in np.quantile(values, QUANTILES)]


def histogram(values: Sequence[float], bins: int = 20) -> tuple[list[float], list[int]]:
    """Edges and counts; scores from 0 (or the lowest, if below) to 1."""
    counts, edges = np.histogram(values, bins=bins, range=(min(0.0, *values), max(1.0, *values)))
    return edges.tolist(), counts.tolist()


def _settings(record: Record) -> dict[str, str]:
    table = {f.name: getattr(record.config, f.name) for f in dataclasses.fields(record.config)}
    options = table.pop("options")
    return {name: str(spell(value)) for name, value in (table | options).items()}


def _labels(records: list[Record]) -> list[str]:
    names = labels(records)
    if len(set(names)) < len(names):
        names = [f"{x} ({r.path.name})" for x, r in zip(names, records, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{label} #{i}" for i, label in enumerate(names, 1)]
    return names
