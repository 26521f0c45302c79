"""The global model of a finished run, or a client's own, exported."""

from dataclasses import replace
from pathlib import Path

from fedsieve.core.errors import ConfigError, DataError
from fedsieve.core.keys import fold
from fedsieve.core.message import Params
from fedsieve.core.method import Task
from fedsieve.core.options import in_range
from fedsieve.engine.run_folder import RunFolder
from fedsieve.export.model import TENSORS, Description, Inputs, save
from fedsieve.jobs.job import Job, build
from fedsieve.jobs.library import Record, read_run, read_tensors


def export_run(
    run: Path, folder: Path, data_root: Path | None = None, client: int | None = None
) -> Description:
    """Cut the model of a run to what is in use and write it to a new folder.

    Args:
        run: folder of a finished run.
        folder: where the model goes.
        data_root: folder of the data files, which say what inputs look like.
        client: whose own model, where models are personal; None is the global one.

    Raises:
        DataError: no finished run or its data, a run without such a model, a folder in use.
        ConfigError: the run's model was handed over as an object, or there is no such client.
    """
    record = read_run(run)
    job, summary = _job(record, data_root), record.summary
    params = _global(record, job) if client is None else _personal(record, job, client)
    task = job.method.task
    data = job.dataset
    inputs = Inputs(
        shape=data.input_shape, outputs=data.num_outputs, scale=data.scale, shift=data.shift
    )
    score = summary.global_accuracy if client is None else None
    origin = {
        "method": summary.method,
        "dataset": summary.dataset,
        "partition": summary.partition,
        "rounds": str(summary.rounds),
        "seed": str(summary.seed),
        **({} if client is None else {"client": str(client)}),
        **({} if score is None else {summary.score: f"{score:.4f}"}),
        "model_hash": summary.model_hash,
    }
    return save(folder, task, params, job.config.model, inputs, origin)


def models_of(run: Path) -> tuple[Task, list[Params]]:
    """The global model of a run, or where there is none all clients' own.

    Raises:
        DataError: no finished run or its data, or a run without a model.
        ConfigError: the run's model was handed over as an object.
    """
    record = read_run(run)
    job = _job(record, None)
    if (run / TENSORS).exists():
        return job.method.task, [_global(record, job)]
    clients = range(job.federation.num_clients)
    return job.method.task, [_personal(record, job, client) for client in clients]


def _job(record: Record, data_root: Path | None) -> Job:
    run, config = record.path, record.config
    if config.model.startswith("object:"):
        raise ConfigError(
            f"{run}: its model was an object, {config.model.removeprefix('object:')}, which has no "
            "name to build it by. Use fedsieve.sparsity.compaction.smallest on its tensors."
        )
    return build(config if data_root is None else replace(config, data_root=str(data_root)))


def _global(record: Record, job: Job) -> Params:
    run, method, layers = record.path, job.config.method, job.method.task.graph.layers
    params = read_tensors(record)
    if params is None:
        raise DataError(
            f"{run}: {method} has no global model, each client has its own. Name one: --client 0."
        )
    if any(x.weight not in params or params[x.weight].dim() != len(x.shape) for x in layers):
        raise DataError(f"{run}: the global model of {method} is not a single network.")
    return params


def _personal(record: Record, job: Job, client: int) -> Params:
    """A client's model as of the newest checkpoint; one never asked still has the start."""
    run = record.path
    method, key, kept = job.method, fold(job.config.seed, "init"), RunFolder(run)
    in_range("client", client, 0, job.federation.num_clients - 1)
    if not method.personal:
        raise ConfigError(f"client={client}: all clients of {job.config.method} have one model.")
    server, start = kept.server(type(method.init_server(key))), method.init_client(client, key)
    state = kept.state(type(start), client) or start
    if server is None or (params := method.model(server, state)) is None:
        raise DataError(f"{run}: no checkpoint holds the model of client {client}.")
    return params
