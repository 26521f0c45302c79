"""The global model of a finished run, exported."""

from dataclasses import replace
from pathlib import Path

import safetensors.torch

from fedsieve.core.errors import ConfigError, DataError
from fedsieve.export.model import Description, Inputs, save
from fedsieve.job import build
from fedsieve.library import read_run


def export_run(run: Path, folder: Path, data_root: Path | None = None) -> Description:
    """Cut the global model of a run to what is in use and write it to a new folder.

    Args:
        run: folder of a finished run.
        folder: where the model goes.
        data_root: folder of the data files, which say what inputs look like.

    Raises:
        DataError: no finished run or its data, a run without a global model, a folder in use.
        ConfigError: the run's model was handed over as an object.
    """
    record = read_run(run)
    config, summary = record.config, record.summary
    if config.model.startswith("object:"):
        raise ConfigError(
            f"{run}: its model was an object, {config.model.removeprefix('object:')}, which has no "
            "name to build it by. Use fedsieve.core.cut.smallest on its tensors."
        )
    if data_root is not None:
        config = replace(config, data_root=str(data_root))
    job = build(config)
    path = run / "model.safetensors"
    if not path.exists():
        raise DataError(f"{run}: {config.method} has no global model, each client has its own.")
    params = safetensors.torch.load_file(path)
    task = job.method.task
    if any(x.weight not in params or params[x.weight].shape != x.shape for x in task.graph.layers):
        raise DataError(f"{run}: the global model of {config.method} is not a single network.")
    data = job.dataset
    inputs = Inputs(
        shape=data.input_shape, outputs=data.num_outputs, scale=data.scale, shift=data.shift
    )
    score = summary.global_accuracy
    origin = {
        "method": summary.method,
        "dataset": summary.dataset,
        "partition": summary.partition,
        "rounds": str(summary.rounds),
        "seed": str(summary.seed),
        **({} if score is None else {summary.score: f"{score:.4f}"}),
        "model_hash": summary.model_hash,
    }
    return save(folder, task, params, job.config.model, inputs, origin)
