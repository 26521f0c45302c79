"""What a finished model weighs as a download."""

from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

from fedsieve.core.message import Bits, Kept, Params
from fedsieve.core.method import Task
from fedsieve.export.run import models_of
from fedsieve.sparsity import masks
from fedsieve.sparsity.compaction import smallest
from fedsieve.wire.codec import encode


class _Download(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]


def coded_bytes(task: Task, params: Params) -> int:
    """Bytes of a model as one message: cut to what is in use, zeros not sent, floats exact."""
    small = smallest(task, params)
    return len(encode(_Download(masks.nonzero(small, task.graph.maskable), small)).data)


def download_bytes(run: Path) -> float:
    """Bytes of the global model of a run; without one, the mean over the clients' own.

    Raises:
        DataError: no finished run, or one without a model.
        ConfigError: the run's model was handed over as an object.
    """
    task, models = models_of(run)
    return fmean(coded_bytes(task, params) for params in models)
