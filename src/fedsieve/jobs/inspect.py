"""What a run of neural matching left: its matching, and how good its networks are."""

from pathlib import Path
from typing import NamedTuple

import torch

from fedsieve.core.message import Params
from fedsieve.engine.run_folder import RunFolder
from fedsieve.jobs.config import make, read_toml
from fedsieve.jobs.job import Job, build
from fedsieve.matching.costs import Ints
from fedsieve.matching.labels import labels_from_tensors
from fedsieve.methods.pfnm import Pfnm, Server, State


class NetworkAccuracy(NamedTuple):
    """Of one client's network before it was matched, and of its part of the global one."""

    client: int
    local_accuracy: float
    part_accuracy: float


class Matched(NamedTuple):
    """The last matching of a run; `clients` took part in it."""

    rounds: int
    clients: list[int]
    labels: list[list[Ints]]  # [layer][place in clients]
    energies: list[float]  # [layer]
    falls: list[list[float]]  # [layer]: of the objective by each re-matching


def is_matching(folder: Path) -> bool:
    """Whether the run in a folder matches neurons."""
    path = folder / "config.toml"
    method = str(read_toml(path).get("method")) if path.exists() else ""
    return method in {"pfnm", "gpi_fnm"}


def read_matched(folder: Path) -> Matched | None:
    """The matching in the newest checkpoint; None before the first round is kept."""
    server = RunFolder(folder).server(Server)
    if server is None or not server.labels:
        return None
    clients, labels = labels_from_tensors(server.labels)
    steps = [server.steps[str(layer)] for layer in range(len(labels))]
    falls = [(before - after).tolist() for _, before, after, _ in (s.unbind(1) for s in steps)]
    return Matched(server.rounds, clients, labels, server.energies.tolist(), falls)


def network_accuracies(folder: Path) -> tuple[float, list[NetworkAccuracy]]:
    """Accuracy on all test data: of the global network, and of each matched client's.

    Raises:
        DataError: the run's data is not there.
    """
    job = build(make(read_toml(folder / "config.toml")))
    method, run = job.method, RunFolder(folder)
    server = run.server(Server)
    if not isinstance(method, Pfnm) or server is None:
        return float("nan"), []
    accuracies = []
    for client in labels_from_tensors(server.labels)[0]:
        state = run.state(State, client)
        if state is None:
            continue
        part = method.part_of(client, server)
        local, shared = _accuracy(job, state.weights), _accuracy(job, part)
        accuracies.append(NetworkAccuracy(client, local, shared))
    return _accuracy(job, server.weights), accuracies


def _accuracy(job: Job, model: Params) -> float:
    right, rows = 0, job.federation.test_union
    with torch.no_grad():
        for batch in job.federation.test_batches(rows):
            predicted = job.method.task.predict(model, batch.x).argmax(1)
            right += int((predicted == batch.y).sum())
    return right / len(rows)
