"""`fedsieve node`: one client of a deployment, with its own data and its own states."""

import logging
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from fedsieve.core.errors import ConfigError, DataError
from fedsieve.core.keys import fold
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.data.partitions.partition import alone
from fedsieve.data.sources.registry import is_remote, load
from fedsieve.deploy.certificates import write_key
from fedsieve.deploy.envelope import Hello
from fedsieve.deploy.flower.fleet import Fleet
from fedsieve.deploy.flower.node import serve
from fedsieve.deploy.flower.reasons import reason_of
from fedsieve.deploy.node_server import NodeServer, Opened
from fedsieve.deploy.processes import off_proxy
from fedsieve.deploy.server import LOOPBACK
from fedsieve.deploy.signature import Private, fresh_key, read_private, read_public
from fedsieve.jobs.api import one_thread
from fedsieve.jobs.config import make
from fedsieve.jobs.execution import client_wire
from fedsieve.jobs.job import build

log = logging.getLogger("fedsieve")
FROM_JOB = "job"


@dataclass(frozen=True, kw_only=True)
class Node:
    """The settings of a node.

    Attributes:
        server: host:port of the server's proxy.
        data: `npz:FILE`, `python:module:function`, a named data set, or `job`: this client's share
            of the job's own data set, for trials.
        store: folder for states; it must outlive the process.
        certs: the node's folder of `fedsieve cert`; None is a trial without TLS on loopback.
    """

    server: str
    client: int
    data: str
    store: Path
    certs: Path | None = None
    data_root: str | None = None

    def __post_init__(self) -> None:
        in_range("--client-id", self.client, 0)
        host = self.server.rpartition(":")[0].strip("[]")
        if not host or not self.server.rpartition(":")[2].isdigit():
            raise ConfigError(f"--server {self.server!r}: write it as HOST:PORT.")
        if self.certs is None and host not in LOOPBACK:
            raise ConfigError(
                f"--insecure with --server {self.server}: without TLS and keys the server must be "
                "on this machine. Ask its operator for certificates (`fedsieve cert`)."
            )


def run(node: Node, is_over: Callable[[], bool] = lambda: False) -> None:
    """Answer the server's calls until `is_over`."""
    key = None if node.certs is None else read_private(node.certs / "node")
    server_key = None if node.certs is None else read_public(node.certs / "server.pub")
    node_server = NodeServer(
        node.client, node.store, lambda hello: open_job(node, hello), key, server_key
    )
    os.environ.update(off_proxy())
    with claimed(node.store, node.client), one_thread():
        log.info("client %d looks for jobs at %s; Ctrl-C ends it", node.client, node.server)
        ca = None if node.certs is None else (node.certs / "ca.crt").read_bytes()
        fleet = Fleet(node.server, ca, key or _trial_key(node.store), node.store)
        serve(
            fleet,
            node_server.answer,
            is_over,
            lambda error: reason_of(error, node.server, node.certs),
        )


def _trial_key(store: Path) -> Private:
    """The key of a node without one: it stays the same node when it is started again."""
    path = store / "trial-key"
    if not path.exists():
        write_key(path, fresh_key())
    return read_private(path)


@contextmanager
def claimed(store: Path, client: int) -> Iterator[None]:
    """The folder of one client, and of one process at a time."""
    store.mkdir(parents=True, exist_ok=True)
    path = store / "client"
    try:
        held = FileLock(store / "lock").acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(f"--store {store}: another node uses it now.") from error
    with held:
        owner = path.read_text() if path.exists() else ""
        if owner not in {"", str(client)}:
            raise ConfigError(
                f"--store {store}: it holds the states of client {owner}, not of {client}. "
                "Give every client a folder of its own."
            )
        path.write_text(str(client))
        yield


def open_job(node: Node, hello: Hello) -> Opened:
    """The job a server describes, on the node's own data.

    Raises:
        ConfigError: it asks for something a server must not choose here.
        DataError: the data is not of the form the server expects.
    """
    config = replace(make(tomllib.loads(hello.config)), data_root=node.data_root, workers=1)
    if config.init_from is not None:
        raise ConfigError(f"init_from={config.init_from!r}: a server does not choose files here.")
    if config.clients is not None and node.client >= config.clients:
        raise ConfigError(
            f"--client-id {node.client}: the job has clients 0 to {config.clients - 1}."
        )
    if node.data == FROM_JOB:
        if config.dataset.startswith(("npz:", "python:")) or is_remote(config.dataset):
            raise ConfigError(
                f"--data job: the job's data set is {config.dataset!r}, which is not the server's "
                "to choose here. Name this node's own with --data."
            )
        job = build(config)
    else:
        key = fold(config.seed, "partition")
        root = None if node.data_root is None else Path(node.data_root)
        dataset = _formed(load(node.data, root, fold(config.seed, "dataset")), hello)
        dataset = dataset.scaled(config.input_scale)
        partition = alone(dataset, node.client, key, config.validation)
        job = build(config, dataset, partition=partition)
        if job.partition.is_pooled:
            raise ConfigError(f"{config.method} pools all data: it runs with --data job only.")
    wire = client_wire(job.config)
    return Opened(job.method, job.federation, wire, job.config.seed)


def _formed(dataset: Dataset, hello: Hello) -> Dataset:
    """The data with the job's number of outputs: an owner may lack the last class."""
    kind, layout, shape, outputs = hello.form
    form = (dataset.kind, dataset.layout, dataset.input_shape)
    if form != (kind, layout, shape) or dataset.num_outputs > outputs:
        raise DataError(
            f"{dataset.name}: the job wants {kind} from {layout} of shape {list(shape)} with "
            f"{outputs} outputs, found {dataset.kind} from {dataset.layout} of shape "
            f"{list(dataset.input_shape)} with {dataset.num_outputs}."
        )
    return replace(dataset, num_outputs=outputs)
