"""FedMix: a mixture of Gaussians over local models; clients gather around several centres.

Paper    "Federated averaging as expectation-maximization", 2020 (specification fedsparse,
         section 1, fourth row).
Symbols  W_k -> server.components[k]   pi_k -> shares   lam -> precision   r_sk -> responsibility
Differs  pi_k is smoothed by `pseudo_count` clients per component: a component that one small
         cohort passes by could otherwise never return.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.core import local, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Exact, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Task, register
from fedsieve.core.optimisers import SGD, Constant, Optimiser, Schedule
from fedsieve.core.options import in_range

SHARES = "mixture.shares"


class Server(NamedTuple):
    components: Params  # stacked: the first dimension counts components
    shares: Tensor
    rounds: int


class State(NamedTuple):
    component: int  # the one the client last started from


class Down(NamedTuple):
    components: Dense
    shares: Exact
    rounds: Count


class Up(NamedTuple):
    weights: Dense
    examples: Count


@register("fedmix")
@dataclass(frozen=True, kw_only=True)
class FedMix(Method[Server, State, Down, Up]):
    """Clusters of clients as components of a mixture prior."""

    task: Task
    personal: ClassVar[bool] = True
    components: int = 2  # K
    precision: float = 1.0  # lam: -log p is per summed loss, so it counts lam / n_k beside the mean
    pseudo_count: float = 1.0  # clients added to each component when shares are estimated
    lr: float = 0.1  # client learning rate
    schedule: Schedule = Constant()  # of the client learning rate, over rounds
    optimiser: Optimiser = SGD()  # of the client; fresh in every round
    weighting: Literal["samples", "uniform"] = "uniform"  # clients count by examples or equally

    def __post_init__(self) -> None:
        in_range("fedmix: components", self.components, 1)
        in_range("fedmix: precision", self.precision, 0, above=True)
        in_range("fedmix: pseudo_count", self.pseudo_count, 0)
        in_range("fedmix: lr", self.lr, 0, above=True)

    def init_server(self, key: Key) -> Server:
        starts = [self.task.init_params(fold(key, "weights", k)) for k in range(self.components)]
        shares = torch.full((self.components,), 1 / self.components)
        return Server(tree.stack(starts), shares, 0)

    def init_client(self, client: int, key: Key) -> State:
        return State(client % self.components)

    def broadcast(self, server: Server, client: int, key: Key) -> Down:
        return Down(server.components, {SHARES: server.shares}, server.rounds)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        centres = tree.unstack(down.components)
        log_shares = down.shares[SHARES].log()
        losses = torch.stack([self._summed_loss(centre, data) for centre in centres])
        component = int((log_shares - losses).argmax())  # most responsible for the client's data

        def objective(weights: Params, batch: Batch, key: Key) -> Tensor:
            log_prior = torch.logsumexp(self._log_joint(weights, centres, log_shares), 0)
            return self.task.loss(weights, batch, key) - log_prior / data.examples

        trained = local.train(
            objective,
            centres[component],
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
        )
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(trained.params, data.examples), State(component), metrics

    def server_update(self, server: Server, replies: Sequence[Up], key: Key) -> Server:
        centres = tree.unstack(server.components)
        log_shares = server.shares.log()
        counts = [r.examples if self.weighting == "samples" else 1 for r in replies]
        weights = torch.tensor([len(replies) * c / sum(counts) for c in counts])
        joint = torch.stack([self._log_joint(r.weights, centres, log_shares) for r in replies])
        responsibility = weights[:, None] * joint.softmax(dim=1)
        moved = [
            self._mean(replies, responsibility[:, k].tolist(), centre)
            for k, centre in enumerate(centres)
        ]
        shares = responsibility.sum(0) + self.pseudo_count
        return Server(tree.stack(moved), shares / shares.sum(), server.rounds + 1)

    def deploy(self, server: Server, state: State | tuple[()]) -> Params:
        if isinstance(state, State):
            return tree.unstack(server.components)[state.component]
        return server.components | {SHARES: server.shares}

    def predict(self, deployed: Params, x: Tensor) -> Tensor:
        """A client's own component, or the ensemble: components' predictions mixed by share."""
        if SHARES not in deployed:
            return self.task.predict(deployed, x)
        centres = tree.unstack({n: v for n, v in deployed.items() if n != SHARES})
        outputs = torch.stack([self.task.predict(centre, x) for centre in centres])
        shares = deployed[SHARES].view(-1, *[1] * (outputs.dim() - 1))
        if self.task.kind == "classes":
            return torch.logsumexp(outputs.log_softmax(-1) + shares.log(), 0)
        if self.task.kind in {"binary", "labels"}:
            return torch.logit((outputs.sigmoid() * shares).sum(0))
        return (outputs * shares).sum(0)

    def _log_joint(self, weights: Params, centres: list[Params], log_shares: Tensor) -> Tensor:
        """Log pi_k + log N(phi; W_k, 1/lam) without the constant, over trainable tensors."""
        trainable = {n: v for n, v in weights.items() if n not in self.task.buffers}
        distances = torch.stack([tree.sq_dist(trainable, centre) for centre in centres])
        return log_shares - self.precision / 2 * distances

    def _mean(self, replies: Sequence[Up], shares: list[float], before: Params) -> Params:
        if not sum(shares):
            return before
        return tree.weighted_mean((r.weights, s) for r, s in zip(replies, shares, strict=True))

    def _summed_loss(self, centre: Params, data: Batches) -> Tensor:
        tally = sum(self.task.tally(self.task.predict(centre, b.x), b.y) for b in data.ordered())
        return torch.tensor(self.task.mean_loss(torch.as_tensor(tally)) * data.examples)
