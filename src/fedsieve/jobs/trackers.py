"""Watchers that copy a run's rows to TensorBoard or MLflow while it goes on.

A field of a row goes under its own name with the round as its step, the method's own figures under
`values/`; the configuration goes as parameters, totals and final figures under `summary/`.
What cannot work (no library, no such place) is refused when a tracker is made. One that fails in
the middle of a run is left off with a warning: the run goes on, and its folder has all rows.
"""

import importlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.options import spell
from fedsieve.jobs.config import SETTINGS, Config, to_toml
from fedsieve.jobs.progress import Watcher
from fedsieve.metrics import rows as metrics
from fedsieve.metrics.rows import Row

log = logging.getLogger(__name__)
MAX_METRICS, MAX_PARAMS = 1000, 100  # that MLflow takes at once


class Several(Watcher):
    """Many watchers as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers
        self._entered = ExitStack()

    def started(self, config: Config, done: list[Row]) -> None:
        for watcher in self.watchers:
            watcher.started(config, done)

    def replied(self, count: int, of: int) -> None:
        for watcher in self.watchers:
            watcher.replied(count, of)

    def finished_round(self, row: Row) -> None:
        for watcher in self.watchers:
            watcher.finished_round(row)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for watcher in self.watchers:
                stack.enter_context(watcher)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exit_: object) -> None:
        self._entered.close()


class Tracker(Watcher):
    """Base of trackers: when something is recorded; subclasses say where.

    Use it in a `with`: what a run that is stopped early has to say is recorded at its end.
    """

    failures: tuple[type[Exception], ...] = (OSError,)

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._total = 0
        self._is_open = False

    def started(self, config: Config, done: list[Row]) -> None:
        self._end()
        self._rows, self._total = list(done), config.rounds
        try:
            self._open(config)
            self._is_open = True
            self._record(done)
        except self.failures as error:
            raise self._refusal(error) from error

    def finished_round(self, row: Row) -> None:
        self._rows.append(row)
        if not self._is_open:
            return
        try:
            self._record([row])
        except self.failures as error:
            self._is_open = False
            log.warning("%s is left off after round %d: %s", self, row.round, error)
        if row.round >= self._total:
            self._end()

    def __exit__(self, *exit_: object) -> None:
        self._end()

    def _refusal(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self} cannot be written: {str(error).strip().rstrip('.')}.")

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        is_finished = bool(self._rows) and self._rows[-1].round >= self._total
        try:
            self._close(totals(self._rows), is_finished=is_finished)
        except self.failures as error:
            log.warning("%s has no summary: %s", self, error)

    def _open(self, config: Config) -> None:
        raise NotImplementedError

    def _record(self, rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def _close(self, summary: dict[str, float], *, is_finished: bool) -> None:
        raise NotImplementedError


class TensorBoard(Tracker):
    """Event files in a folder, for one run; a run that is resumed or repeated there replaces it."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._library = _library("tensorboardX", "tensorboard")
        self._params: dict[str, Any] = {}
        self._writer: Any = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refusal(error) from error

    def __str__(self) -> str:
        return f"tensorboard:{self.folder}"

    def _open(self, config: Config) -> None:
        self._params = params(config)
        # Everything from step 0 on that stood there before is hidden: rows are written anew.
        self._writer = self._library.SummaryWriter(str(self.folder), purge_step=0)
        text = "".join(f"    {line}\n" for line in to_toml(config).splitlines())
        self._writer.add_text("config", text, 0)

    def _record(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in numbers(row).items():
                self._writer.add_scalar(name, value, row.round)
        self._writer.flush()

    def _close(self, summary: dict[str, float], *, is_finished: bool) -> None:
        named = {f"summary/{name}": value for name, value in summary.items()}
        self._writer.add_hparams(self._params, named, name="summary")
        self._writer.close()


class MLflow(Tracker):
    """One MLflow run per run; `uri` is a tracking server, a database or a folder of MLflow's."""

    def __init__(self, uri: str, experiment: str = "fedsieve") -> None:
        super().__init__()
        self.uri, self.experiment = uri, experiment
        library = _library("mlflow", "mlflow")
        self._entities = _library("mlflow.entities", "mlflow")
        self.failures = (OSError, _library("mlflow.exceptions", "mlflow").MlflowException)
        self._run = ""
        try:
            self._client = library.MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            self._place = (
                known.experiment_id if known else self._client.create_experiment(experiment)
            )
        except self.failures as error:
            raise self._refusal(error) from error

    def __str__(self) -> str:
        return f"mlflow:{self.uri}"

    def _open(self, config: Config) -> None:
        name = f"{config.method} on {config.dataset}"
        self._run = self._client.create_run(self._place, run_name=name).info.run_id
        pairs = [self._entities.Param(n, str(v)) for n, v in params(config).items()]
        for start in range(0, len(pairs), MAX_PARAMS):
            self._client.log_batch(self._run, params=pairs[start : start + MAX_PARAMS])

    def _record(self, rows: Sequence[Row]) -> None:
        self._send([(n, v, row.round) for row in rows for n, v in numbers(row).items()])

    def _close(self, summary: dict[str, float], *, is_finished: bool) -> None:
        step = int(summary["rounds"])
        self._send([(f"summary/{name}", value, step) for name, value in summary.items()])
        self._client.set_terminated(self._run, status="FINISHED" if is_finished else "KILLED")

    def _send(self, figures: list[tuple[str, float, int]]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value, step in figures]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + MAX_METRICS])


KINDS: dict[str, Callable[[str], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def tracker(text: str) -> Tracker:
    """The tracker that `tensorboard:FOLDER` or `mlflow:URI` names.

    Raises:
        ConfigError: no such tracker, no place after the colon, or its library is not installed.
    """
    kind, _, place = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(unknown("tracker", kind, KINDS))
    if not place:
        raise ConfigError(f"track={text!r}: say where, as in tensorboard:FOLDER or mlflow:URI.")
    return KINDS[kind](place)


def numbers(row: Row) -> dict[str, float]:
    """The numbers of a row by name, without those that are missing; the round is the step."""
    fields = {name: getattr(row, name) for name in Row.__struct_fields__ if name != "round"}
    return _finite(fields | {f"values/{name}": value for name, value in row.values.items()})


def totals(rows: list[Row]) -> dict[str, float]:
    """Totals and final figures of rows, named as in `result.json`."""
    figures = metrics.totals(rows) | {"rounds": rows[-1].round if rows else 0}
    return _finite(figures)


def _finite(figures: dict[str, Any]) -> dict[str, float]:
    return {n: v for n, v in figures.items() if isinstance(v, int | float) and math.isfinite(v)}


def params(config: Config) -> dict[str, Any]:
    """Settings and the method's options as plain values, by name."""
    values = {name: spell(getattr(config, name)) for name in SETTINGS}
    values |= {name: spell(value) for name, value in sorted(config.options.items())}
    return {n: v if isinstance(v, str | int | float) else str(v) for n, v in values.items()}


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"tracking with {extra} needs {name.partition('.')[0]} ({error}): "
            f"pip install 'fedsieve[{extra}]'."
        ) from error
