"""Finished runs as records, and a library of runs that are made once and found again.

A run's place in a library is the hash of everything that decides its result, so that recipes,
sweeps and tuning reuse what is there, continue what was interrupted, and run only what is missing.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import safetensors
import safetensors.torch

from fedsieve.core import tree
from fedsieve.core.errors import DataError
from fedsieve.core.message import Params
from fedsieve.core.method import method_class
from fedsieve.core.options import brief, default_of
from fedsieve.engine.manifest import ADVICE, check_finished, has_valid_hash
from fedsieve.engine.run_folder import RESULT
from fedsieve.jobs import api
from fedsieve.jobs.config import SETTINGS, Config, make, method_options, read_toml
from fedsieve.jobs.job import canonical
from fedsieve.jobs.progress import Watcher
from fedsieve.jobs.result import Result
from fedsieve.jobs.settings import NOT_HASHED
from fedsieve.metrics.rows import Evaluation, Row, Summary, read_row, read_summary

TUNING_FILE = "tuning.json"
FORMAT = 1  # of results: raised when a change makes equal settings give others, in any method
log = logging.getLogger("fedsieve")


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
    check_finished(path, RESULT)
    try:
        summary = read_summary((path / "result.json").read_bytes())
        rows = [read_row(line) for line in _lines(path / "rounds.jsonl")]
        lines = _lines(path / "evaluations.jsonl")
        evaluations = [msgspec.json.decode(line, type=Evaluation) for line in lines]
        is_whole = has_valid_hash((path / "config.toml").read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no {Path(error.filename).name} there. Give the folder of a finished run "
            "(fedsieve run --out DIR), or continue an unfinished one with --resume."
        ) from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable run folder: {error}. {ADVICE}") from error
    if is_whole is False:
        raise DataError(f"{path}: config.toml is damaged or was changed. {ADVICE}")
    return Record(path, make(read_toml(path / "config.toml")), summary, rows, evaluations)


def read_tensors(record: Record) -> Params | None:
    """The global model of a run, if it has one.

    Raises:
        DataError: it is not the one that the run ended with.
    """
    path = record.path / "model.safetensors"
    check_finished(record.path, (path.name,))
    if not path.exists():
        return None
    try:
        model = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a readable model ({error}). {ADVICE}") from error
    is_personal = method_class(record.config.method).personal  # the hash is of more than the model
    is_personal = record.config.options.get("personal", is_personal)
    if not is_personal and tree.digest(model) != record.summary.model_hash:
        raise DataError(f"{path}: is not the model whose hash result.json has. {ADVICE}")
    return model


def load(folder: str | Path) -> Result:
    """The result in a run folder, as `fedsieve.run` gave it.

    ```python
    fedsieve.load("runs/first").plot().save("first.svg")
    ```

    Raises:
        DataError: it is not a run folder, or the run never got to write a result.
    """
    record = read_run(Path(folder))
    return Result(record.summary, record.rows, read_tensors(record), record.config, record.path)


def run_hash(settings: Mapping[str, Any]) -> str:
    """Twelve hex digits of all that decides a run's result.

    What has its default value is left out: a new setting or option leaves the hashes of old runs
    as they are. Code and defaults count by number: FORMAT, and the method's `version`.
    """
    config = canonical(make(dict(settings)), brief)
    cls, plain = method_class(config.method), Config()
    defaults = {n: default_of(f) for n, f in method_options(cls).items()}
    deciding = {n: getattr(config, n) for n in SETTINGS if n not in NOT_HASHED}
    given = {
        "settings": {n: v for n, v in deciding.items() if v != getattr(plain, n)},
        "options": {n: brief(v) for n, v in config.options.items() if v != defaults[n]},
        "format": [FORMAT, cls.version],
    }
    text = json.dumps(given, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def find(settings: Mapping[str, Any], root: Path) -> Record | None:
    """The finished run of these settings in the library at `root`, if it is there whole."""
    path = root / run_hash(settings)
    if not (path / "result.json").exists():
        return None
    try:
        record = read_run(path)
    except DataError as error:  # run again from its last whole checkpoint
        log.warning("%s", error)
        return None
    return record if record.summary.status == "finished" else None


def find_or_run(settings: Mapping[str, Any], root: Path, watcher: Watcher | None = None) -> Record:
    """The finished run of these settings: found, continued or run now."""
    record = find(settings, root)
    if record is not None:
        return record
    path, watcher = root / run_hash(settings), watcher or Watcher()
    if (path / "config.toml").exists():  # its hash says that it is the same run
        free = {name: settings[name] for name in NOT_HASHED if name in settings}
        api.run(out=path, resume=True, watcher=watcher, **free)
    else:
        api.run(out=path, watcher=watcher, **settings)
    return read_run(path)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()
