"""Neural matching with a single communication: over clients (figure 2) and depth (figure 3).

Paper    Xiao & Cheng, "Probabilistic Federated Learning of Neural Networks Incorporated with Global
         Posterior Information", figures 2 and 3: MNIST and CIFAR-10, 100 neurons a layer, ten
         epochs of AMSGrad in batches of 32, equal parts or Dirichlet(0.4), ten trials.
Symbols  S -> clients   epsilon -> eps   J -> atoms
Differs  the figures print no numbers, so only the tier `small` has expected ones, those of
         specification neural_matching, section 12, on one split of Fashion-MNIST. Hyper-parameters
         are 1 throughout and eps stands in every row's name: nothing is chosen by test accuracy,
         which the paper does.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.message import Params
from fedsieve.core.method import Round
from fedsieve.jobs.api import one_thread
from fedsieve.jobs.config import make
from fedsieve.jobs.job import Job, build
from fedsieve.matching.layout import layout_of
from fedsieve.methods.gpi_fnm import GpiFnm
from fedsieve.methods.pfnm import CLASSES, Down, Pfnm, Up
from fedsieve.recipes.papers.fusions import k_means_network, uniform_ensemble, weighted_ensemble
from fedsieve.recipes.recipe import (
    Expected,
    Settings,
    Study,
    StudyTier,
    Trial,
    Within,
    register,
)

PAPER: dict[str, object] = {
    "method": "pfnm",
    "preset": "paper",
    "model": "mlp(hidden=[100])",
    "input_scale": "unit",
    "rounds": 1,
    "epochs": 10,
    "batch_size": 32,
}
PARTITIONS = {"homogeneous": "iid", "heterogeneous": "capped_dirichlet(0.4)"}
EPS = (0.02, 0.1, 0.3, 0.5)


def trial(settings: Settings) -> Trial:
    """Local networks once, and every way to fuse them."""
    with one_thread():
        job = build(make({**settings, "cohort": settings["clients"]}))
        return dict(_rows(job))


def _rows(job: Job) -> Iterator[tuple[str, dict[str, float]]]:
    pfnm = job.method
    if not isinstance(pfnm, Pfnm):
        raise TypeError("a trial of one-shot matching needs the method pfnm.")
    key = fold(job.config.seed, "study")
    replies = _train(job, pfnm, None)
    batches = list(job.federation.test_batches(job.federation.test_union))
    y = torch.cat([batch.y for batch in batches])

    def outputs(model: Params) -> Tensor:
        return torch.cat([pfnm.task.predict(model, batch.x) for batch in batches])

    def accuracy(predicted: Tensor) -> dict[str, float]:
        return {"global_accuracy": (predicted.argmax(1) == y).float().mean().item()}

    locals_ = [outputs(reply.weights) for reply in replies]
    scores = [accuracy(own)["global_accuracy"] for own in locals_]
    yield "local mean", {"global_accuracy": sum(scores) / len(scores)}
    shared = _train(job, pfnm, pfnm.fresh(0, fold(key, "shared")))
    mean = tree.weighted_mean((r.weights, int(r.classes[CLASSES].sum())) for r in shared)
    yield "FedAvg, shared start", accuracy(outputs(mean))
    yield "ensemble, uniform", accuracy(uniform_ensemble(locals_))
    counts = torch.stack([reply.classes[CLASSES] for reply in replies])
    yield "ensemble, by class", accuracy(weighted_ensemble(locals_, counts))
    server = pfnm.init_server(key)
    fused = pfnm.server_update(server, Round(replies), key)
    atoms = pfnm.report(fused).figures
    yield "PFNM", accuracy(outputs(fused.weights)) | atoms
    layout = layout_of(pfnm.task.graph, "k-means")
    if len(layout.hidden) == 1:
        size = int(atoms["atoms_1"])
        networks = [reply.weights for reply in replies]
        centres = k_means_network(layout, networks, size, fold(key, "k-means"))
        yield "k-means, PFNM's size", accuracy(outputs(centres))
    shared_options = {
        n: getattr(pfnm, n) for n in ("sigma2", "sigma0_2", "gamma0", "costs", "padding", "sweeps")
    }
    for eps in EPS:
        gpi = GpiFnm(task=pfnm.task, eps=(eps,), **shared_options)
        fused = gpi.server_update(server, Round(replies), key)
        yield f"GPI-FNM, eps {eps}", accuracy(outputs(fused.weights)) | gpi.report(fused).figures


def _train(job: Job, method: Pfnm, start: Params | None) -> list[Up]:
    """All clients' local work of the first round, from starts of their own or a common one."""
    key = fold(job.config.seed, "init")
    return [
        method.client_update(
            Down(start or {}, 0),
            method.init_client(client, key),
            job.federation.batches(client),
            fold(job.config.seed, "client", 1, client),
        )[0]
        for client in range(job.federation.num_clients)
    ]


def _cell(dataset: str, clients: int, partition: str, depth: int = 1) -> Settings:
    lr = 0.001 if dataset == "cifar10" else 0.01
    reg = 1e-5 if dataset == "cifar10" else 1e-6
    return {
        **PAPER,
        "dataset": dataset,
        "clients": clients,
        "partition": PARTITIONS[partition],
        "model": f"mlp(hidden={[100] * depth})",
        "lr": lr,
        "reg": reg,
    }


def _reference(value: float, tolerance: float) -> tuple[Expected]:
    source = "specification, section 12: two seeds of an independent program"
    return (Expected("global_accuracy", Within(value, tolerance), source),)


FASHION = "Fashion-MNIST, heterogeneous, 10 clients"
SAME_SPLIT = "Fashion-MNIST, the specification's split, 10 clients"
SMOKE_CELL: Settings = {
    **PAPER,
    "dataset": "digits",
    "clients": 5,
    "partition": PARTITIONS["heterogeneous"],
    "model": "mlp(hidden=[30])",
    "lr": 0.01,
}

register(
    Study(
        name="matching_clients",
        title="One-shot fusion of one-layer networks over the number of clients",
        source="GPI-FNM paper, figure 2",
        measure=trial,
        tiers={
            "smoke": StudyTier(cells={"digits, 5 clients": SMOKE_CELL}),
            "small": StudyTier(
                cells={
                    SAME_SPLIT: {
                        **_cell("fashion_mnist", 10, "heterogeneous"),
                        "partition": "numpy_dirichlet(0.4)",
                    },
                    FASHION: _cell("fashion_mnist", 10, "heterogeneous"),
                },
                expected={
                    f"{SAME_SPLIT}: local mean": _reference(0.63, 0.03),
                    f"{SAME_SPLIT}: FedAvg, shared start": _reference(0.37, 0.05),
                    f"{SAME_SPLIT}: ensemble, uniform": _reference(0.84, 0.015),
                    f"{SAME_SPLIT}: ensemble, by class": _reference(0.855, 0.015),
                    f"{SAME_SPLIT}: PFNM": _reference(0.83, 0.02),
                },
            ),
            "full": StudyTier(
                cells={
                    f"{name}, {partition}, {clients} clients": _cell(data, clients, partition)
                    for data, name in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
                    for partition in PARTITIONS
                    for clients in (10, 15, 20, 25, 30)
                }
            ),
        },
    )
)
register(
    Study(
        name="matching_depth",
        title="One-shot fusion of networks of one to six hidden layers",
        source="GPI-FNM paper, figure 3",
        measure=trial,
        tiers={
            "smoke": StudyTier(
                cells={"digits, 2 layers": {**SMOKE_CELL, "model": "mlp(hidden=[30, 30])"}}
            ),
            "small": StudyTier(
                cells={
                    f"Fashion-MNIST, {depth} layers": _cell(
                        "fashion_mnist", 10, "heterogeneous", depth
                    )
                    for depth in (2, 3)
                }
            ),
            "full": StudyTier(
                cells={
                    f"{name}, {partition}, {depth} layers": _cell(data, 10, partition, depth)
                    for data, name in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
                    for partition in PARTITIONS
                    for depth in range(1, 7)
                }
            ),
        },
    )
)
