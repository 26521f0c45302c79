"""What a run gives back, and its summary."""

import hashlib
import importlib
import importlib.metadata
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsieve.config import Config
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.message import Params
from fedsieve.engines.rounds import Position
from fedsieve.engines.store import ClientStore, Receipt
from fedsieve.job import Job
from fedsieve.ledger.rows import Row, Summary, best, last

SCORES = {"classes": "accuracy", "binary": "accuracy", "labels": "micro-F1", "values": "R2"}


@dataclass(frozen=True)
class Result:
    """What a run gives back: the same figures as in its folder, and the global model if any."""

    summary: Summary
    rows: list[Row]
    model: Params | None
    config: Config
    folder: Path | None = None  # where it is kept

    def frame(self) -> Any:
        """The rows as a pandas DataFrame; see `fedsieve.report.frames.frame`."""
        return frame(self.rows)


def frame(rows: Sequence[Row]) -> Any:
    """Rows as a pandas DataFrame.

    One column per field of a row, the method's own figures as `values.NAME`; what a row does not
    have is NaN.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigError(f"a frame needs pandas ({error}): pip install pandas.") from error
    fields = [name for name in Row.__struct_fields__ if name != "values"]
    columns = {name: [_number(getattr(row, name)) for row in rows] for name in fields}
    for name in dict.fromkeys(name for row in rows for name in row.values):
        columns[f"values.{name}"] = [_number(row.values.get(name)) for row in rows]
    return pandas.DataFrame(columns)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def global_model(job: Job, position: Position, store: ClientStore) -> Params | None:
    """The model a run ends with; None where every client has its own, or keeps it."""
    state = store.get(0) if job.federation.is_pooled else ()
    return None if isinstance(state, Receipt) else job.method.deploy(position.server, state)


def summarise(
    job: Job, position: Position, store: ClientStore, rows: list[Row], stopped: str
) -> Summary:
    """Totals and final figures."""
    config = job.config

    def total(name: str) -> int:
        return sum(getattr(row, name) for row in rows)

    return Summary(
        method=config.method,
        dataset=config.dataset,
        model=config.model,
        partition=config.partition,
        partition_fingerprint=job.partition.fingerprint,
        seed=config.seed,
        num_clients=config.clients or 0,
        rounds=position.done,
        seconds=sum(row.seconds for row in rows),
        stopped=stopped,
        score=SCORES[job.dataset.kind],
        global_accuracy=last(rows, "global_accuracy"),
        local_accuracy=last(rows, "local_accuracy"),
        loss=last(rows, "loss"),
        best_global_accuracy=best(rows, "global_accuracy"),
        best_local_accuracy=best(rows, "local_accuracy"),
        seen_accuracy=last(rows, "seen_accuracy"),
        local_density=last(rows, "local_density"),
        layer_mean_density=last(rows, "layer_mean_density"),
        density=rows[-1].density if rows else 1.0,
        up_bytes=total("up_bytes"),
        down_bytes=total("down_bytes"),
        up_paper_bytes=total("up_paper_bytes"),
        down_paper_bytes=total("down_paper_bytes"),
        flops_dense=total("flops_dense"),
        flops_ideal=total("flops_ideal"),
        flops_realisable=total("flops_realisable"),
        failed=total("failed"),
        model_hash=_model_hash(job, position, store),
        versions={
            "fedsieve": importlib.metadata.version("fedsieve"),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        deployed_values=last(rows, "deployed_values"),
        deployed_macs=last(rows, "deployed_macs"),
        true_discovery=last(rows, "true_discovery"),
        truth_recall=last(rows, "truth_recall"),
        values=rows[-1].values if rows else {},
    )


def _model_hash(job: Job, position: Position, store: ClientStore) -> str:
    """The hash of the global model, or of all clients' states where models are personal."""
    if not job.method.personal:
        return tree.digest(job.method.deploy(position.server, ()))
    digests = [f"{client}:{store.digest(client)}" for client in store.known()]
    whole = "|".join([tree.digest(position.server), *digests])
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
