"""Finished runs as records, and a library of runs that are made once and found again.

A run's place in a library is the hash of everything that decides its result, so that recipes,
sweeps and tuning reuse what is there, continue what was interrupted, and run only what is missing.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import safetensors.torch

from fedsieve import api
from fedsieve.config import Config, make, method_options, read_toml, to_toml
from fedsieve.core.errors import DataError
from fedsieve.core.method import method_class
from fedsieve.job import canonical
from fedsieve.ledger.rows import Evaluation, Row, Summary
from fedsieve.progress import Watcher
from fedsieve.result import Result
from fedsieve.settings import INDIFFERENT

T = TypeVar("T")


class Record(NamedTuple):
    """A finished (or stopped) run as its folder holds it."""

    path: Path
    config: Config
    summary: Summary
    rows: list[Row]
    evaluations: list[Evaluation]


def read_run(path: Path) -> Record:
    """The record in a run folder.

    Raises:
        DataError: it is not a run folder, or the run never got to write a result.
    """
    try:
        summary = msgspec.json.decode((path / "result.json").read_bytes(), type=Summary)
        rows = _lines(path / "rounds.jsonl", Row)
        evaluations = _lines(path / "evaluations.jsonl", Evaluation)
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no {Path(error.filename).name} there. Give the folder of a finished run "
            "(fedsieve run --out DIR), or continue an unfinished one with --resume."
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{path}: not a readable run folder: {error}.") from error
    return Record(path, make(read_toml(path / "config.toml")), summary, rows, evaluations)


def load(folder: str | Path) -> Result:
    """The result in a run folder, as `fedsieve.run` gave it.

    Raises:
        DataError: it is not a run folder, or the run never got to write a result.
    """
    path = Path(folder)
    record, tensors = read_run(path), path / "model.safetensors"
    model = safetensors.torch.load_file(tensors) if tensors.exists() else None
    return Result(record.summary, record.rows, model, record.config, path)


def run_hash(settings: Mapping[str, Any]) -> str:
    """Twelve hex digits of all that decides a run's result; defaults count as if written out."""
    config = canonical(make(dict(settings)))
    options = method_options(method_class(config.method))
    defaults = {n: f.default for n, f in options.items() if f.default is not dataclasses.MISSING}
    plain = {name: getattr(Config(), name) for name in INDIFFERENT}
    whole = dataclasses.replace(config, options=defaults | config.options, **plain)
    return hashlib.blake2b(to_toml(whole).encode(), digest_size=6).hexdigest()


def find(settings: Mapping[str, Any], root: Path) -> Record | None:
    """The finished run of these settings in the library at `root`, if it is there."""
    path = root / run_hash(settings)
    if not (path / "result.json").exists():
        return None
    summary = msgspec.json.decode((path / "result.json").read_bytes(), type=Summary)
    return read_run(path) if summary.stopped == "finished" else None


def obtain(settings: Mapping[str, Any], root: Path, watcher: Watcher | None = None) -> Record:
    """The finished run of these settings: found, continued or run now."""
    found = find(settings, root)
    if found is not None:
        return found
    path, watcher = root / run_hash(settings), watcher or Watcher()
    if (path / "config.toml").exists():  # its hash says that it is the same run
        free = {name: settings[name] for name in INDIFFERENT if name in settings}
        api.run(out=path, resume=True, watcher=watcher, **free)
    else:
        api.run(out=path, watcher=watcher, **settings)
    return read_run(path)


def _lines(path: Path, kind: type[T]) -> list[T]:
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]
