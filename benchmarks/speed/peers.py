"""pfl-research (package `pfl`, extra `pytorch`) as a contestant of rounds.py: its simulated FedAvg.

The same modules, start, shards, cohorts and mini-batches as the hand-written loop, so the norms
agree up to rounding: pfl averages differences of models, not models. (Its user sampler and its user
datasets are functions that one supplies; a user identifier here is a pair of a round and a client,
and the shard is put in that round's order when its dataset is made.) Everything else is its own:
SimulatedBackend, the bridge to SGD, weights by data points, a central step of SGD with rate 1.
No evaluation, no callbacks of ours, one process.
"""

import os
from collections.abc import Iterator
from itertools import count

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from fedsieve.core import keys
from fedsieve.core.keys import fold
from fedsieve.jobs.job import Job
from rounds import LeNet, norm


class Trainable(nn.Module):
    """A plain module with the two functions pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Nothing: pfl evaluates in its iteration 0, whatever its frequency."""
        return {}


def rounds(job: Job, lr: float) -> Iterator[float]:
    """The norm of the global model after every round; one step of the iterator is one round."""
    os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")  # as the other contestants
    net = LeNet() if len(job.dataset.input_shape) == 3 else nn.Linear(1000, 10, bias=False)
    start: dict[str, Tensor] = job.method.init_server(fold(0, "init")).weights
    net.load_state_dict(dict(zip(net.state_dict(), start.values(), strict=True)))
    module = Trainable(net)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = federation(job)
    backend = SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()])
    training = NNTrainHyperParams(
        local_batch_size=job.config.batch_size, local_num_epochs=1, local_learning_rate=lr
    )
    algorithm = FederatedAveraging()
    for number in count(1):  # a second `run` resumes where the first one ended
        plan = NNAlgorithmParams(
            central_num_iterations=number,
            evaluation_frequency=2**62,
            train_cohort_size=10,
            val_cohort_size=None,
        )
        algorithm.run(plan, backend, model, training, send_metrics_to_platform=False)
        yield norm({name: value.detach() for name, value in model.variable_map.items()})


def federation(job: Job) -> FederatedDataset:
    """Cohort after cohort of (round, client), and the client's rows in the order of that round."""
    dataset, shards = job.dataset, job.partition.train
    inputs = dataset.inputs(dataset.x)
    x = torch.empty(inputs.shape).copy_(inputs)  # plain NCHW strides, as a loader would give
    users = (
        (number, client)
        for number in count(1)
        for client in keys.sample(fold(0, "cohort", number - 1), len(shards), 10)
    )

    def make(user: tuple[int, int]) -> PyTorchTensorDataset:
        shard = shards[user[1]]
        key = fold(fold(0, "client", *user), "epoch", 0)
        order = shard[keys.permutation(fold(key, "order"), len(shard))]
        return PyTorchTensorDataset((x[order], dataset.y[order]))

    return FederatedDataset(make, users.__next__)
