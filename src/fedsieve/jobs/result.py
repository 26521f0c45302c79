"""The result of a run, and its summary."""

import hashlib
import importlib
import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from markupsafe import Markup

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.message import Params
from fedsieve.drawing.plot import Plot, plot
from fedsieve.drawing.svg import Axis, Point, Series
from fedsieve.drawing.units import duration, size
from fedsieve.engine.rounds import Checkpoint
from fedsieve.engine.store import ClientStore, Receipt
from fedsieve.jobs.config import Config
from fedsieve.jobs.job import Job
from fedsieve.metrics.rows import Row, Summary, totals

SCORE_NAMES = {"classes": "accuracy", "binary": "accuracy", "labels": "micro-F1", "values": "R2"}


CARD = Markup(
    '<div style="display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start">'
    "<table><caption>{}</caption>{}</table>"
    '<div style="max-width: 26rem">{}</div></div>'
)
ROUND = Axis("round", is_whole=True)


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run: the same figures as in its folder, and the global model if any."""

    summary: Summary
    rows: list[Row]
    model: Params | None
    config: Config
    folder: Path | None = None  # where it is kept

    def __repr__(self) -> str:
        """A short card; everything is in `summary`, `rows`, `model` and `config`."""
        facts = self._facts()
        width = max(map(len, facts))
        return "\n".join([self._title, *(f"  {n:<{width}}  {v}" for n, v in facts.items())])

    def _repr_html_(self) -> str:
        rows = [Markup("<tr><th>{}</th><td>{}</td></tr>").format(*f) for f in self._facts().items()]
        return CARD.format(self._title, Markup("").join(rows), self.plot())

    def plot(self, against: Literal["bytes", "rounds"] = "bytes") -> Plot:
        """The score over MB sent both ways on a logarithmic axis, or over rounds.

        In a notebook it shows itself; `plot().save("curve.svg")` writes it. Runs beside each other:
        `fedsieve.compare(a, b).plot()`.
        """
        return plot_scores({self.summary.method: (self.summary, self.rows)}, against)

    def frame(self) -> Any:
        """The rows as a pandas DataFrame; see `fedsieve.report.frames.frame`."""
        return frame(self.rows)

    @property
    def _title(self) -> str:
        s = self.summary
        return f"{s.method} on {s.dataset}: {s.model}, {s.num_clients} clients, {s.partition}"

    def _facts(self) -> dict[str, str]:
        s = self.summary
        known = ", ".join(f"{value:.4f} {name}" for name, value in s.scores.items())
        ways = f"up {size(s.up_bytes)}, down {size(s.down_bytes)}"
        return {
            "rounds": f"{s.rounds} ({s.status}) in {duration(s.seconds)}",
            s.score: known or "not measured",
            "density": f"{s.density:.4f}",
            "sent": f"{size(s.sent_bytes)} ({ways})",
            "folder": str(self.folder) if self.folder else "none: give out=...",
            "hash": s.model_hash,
        }


def plot_scores(
    runs: Mapping[str, tuple[Summary, Sequence[Row]]],
    against: Literal["bytes", "rounds"] = "bytes",
) -> Plot:
    """Scores of runs by label: the global one, or the local one where there is no global model."""
    if against not in {"bytes", "rounds"}:
        raise ConfigError(f"against={against!r}: expected 'bytes' or 'rounds'.")
    silent = not any(row.sent_bytes for _, rows in runs.values() for row in rows)
    by_bytes = against == "bytes" and not silent
    series, labels, kind = [], {}, "accuracy"
    for number, (label, (summary, rows)) in enumerate(runs.items()):
        kind, field = summary.score, summary.score_field
        sent = accumulate(row.sent_bytes for row in rows)
        points = [
            Point(b / 1e6 if by_bytes else row.round, y,
                  f"{label}, round {row.round}: {y:.4f} at {size(b)}")
            for row, b in zip(rows, sent, strict=True)
            if (y := getattr(row, field)) is not None and (b or not by_bytes)
        ]  # fmt: skip
        series.append(Series(number, points))
        labels[number] = f"{label} (local)" if summary.is_local else label
    across = Axis("MB sent, both ways (log)", is_log=True) if by_bytes else ROUND
    words = "over MB sent" if by_bytes else "over rounds"
    return plot(series, labels, across, Axis(kind), f"{kind} {words}")


def frame(rows: Sequence[Row]) -> Any:
    """Rows as a pandas DataFrame.

    One column per field of a row, the method's own figures as `values.NAME`; what a row does not
    have is NaN.

    Raises:
        ConfigError: pandas is not installed.
    """
    fields = [name for name in Row.__struct_fields__ if name != "values"]
    columns = {name: [_number(getattr(row, name)) for row in rows] for name in fields}
    for name in dict.fromkeys(name for row in rows for name in row.values):
        columns[f"values.{name}"] = [_number(row.values.get(name)) for row in rows]
    return data_frame(columns)


def data_frame(table: Any) -> Any:
    """A pandas DataFrame; ConfigError where pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigError(f"a frame needs pandas ({error}): pip install pandas.") from error
    return pandas.DataFrame(table)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def global_model(job: Job, position: Checkpoint, store: ClientStore) -> Params | None:
    """The model a run ends with; None where every client has its own, or keeps it."""
    state = store.get(0) if job.partition.is_pooled else ()
    return None if isinstance(state, Receipt) else job.method.model(position.server, state)


def summarise(
    job: Job, position: Checkpoint, store: ClientStore, rows: list[Row], status: str
) -> Summary:
    """Totals and final figures."""
    config = job.config
    return Summary(
        method=config.method,
        dataset=config.dataset,
        model=config.model,
        partition=config.partition,
        partition_fingerprint=job.partition.fingerprint,
        seed=config.seed,
        num_clients=config.clients or 0,
        rounds=position.done,
        status=status,
        score=SCORE_NAMES[job.dataset.kind],
        model_hash=_model_hash(job, position, store),
        versions={
            "fedsieve": importlib.metadata.version("fedsieve"),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        **{"density": 1.0} | totals(rows),
    )


def _model_hash(job: Job, position: Checkpoint, store: ClientStore) -> str:
    """The hash of the global model, or of all clients' states where models are personal."""
    if not job.method.personal:
        return tree.digest(job.method.model(position.server, ()))
    digests = [f"{client}:{store.digest(client)}" for client in store.known()]
    whole = "|".join([tree.digest(position.server), *digests])
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
