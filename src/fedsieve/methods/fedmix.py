"""FedMix: a mixture of Gaussians over local models; clients gather around several centres.

Paper    "Federated averaging as expectation-maximization", 2020 (specification fedsparse,
         section 1, fourth row).
Symbols  W_k -> server.components[k]   pi_k -> shares   lam -> precision   r_sk -> responsibility
Differs  pi_k is smoothed by `pseudo_count` clients per component: a component that one small
         cohort passes by could otherwise never return. Statistics of normalisation layers are
         averaged in each component.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Exact, Params
from fedsieve.core.method import Batches, Method, Metrics, Round, register
from fedsieve.core.options import in_range, option
from fedsieve.inference.priors import Components, Mixture
from fedsieve.methods.em import HardEM
from fedsieve.methods.fedavg import Up

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


@register("fedmix")
@dataclass(frozen=True, kw_only=True)
class FedMix(HardEM, Method[Server, State, Down, Up]):
    """Clusters of clients as components of a mixture prior."""

    same_entries = False  # clients gather around different centres
    components: int = option(2, "K")
    precision: float = option(
        1.0, "lam: -log p is per summed loss, so it counts lam / n_k beside the mean"
    )
    pseudo_count: float = option(1.0, "clients added to each component when shares are estimated")
    weighting: Literal["samples", "uniform"] = option(
        "uniform", "clients count by examples or equally"
    )
    personal: bool = option(
        True, "local accuracy is that of the component a client last started from"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("fedmix: components", self.components, 1)
        in_range("fedmix: precision", self.precision, 0, above=True)
        in_range("fedmix: pseudo_count", self.pseudo_count, 0)

    @property
    def prior(self) -> Mixture:
        return Mixture(self.precision)

    def init_server(self, key: Key) -> Server:
        starts = [self.task.init_params(fold(key, "weights", k)) for k in range(self.components)]
        shares = torch.full((self.components,), 1 / self.components)
        return Server(tree.stack(starts), shares, 0)

    def init_client(self, client: int, key: Key) -> State:
        return State(client % self.components)

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.components, {SHARES: server.shares}, server.rounds)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        starts, log_shares = tree.unstack(down.components), down.shares[SHARES].log()
        losses = torch.stack([self._summed_loss(start, data) for start in starts])
        nearest = int((log_shares - losses).argmax())
        centre = Components([self.trainable(one) for one in starts], log_shares, data.examples)
        trained = self.e_step(self.prior, centre, starts[nearest], down.rounds, data, key)
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(trained.params, data.examples), State(nearest), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies, shares = round.replies, self.shares(round.replies)
        before = tree.unstack(server.components)
        centre = Components([self.trainable(one) for one in before], server.shares.log())
        responsibility = self.prior.responsibility([r.weights for r in replies], centre, shares)
        moved = [
            self._mean(replies, responsibility[:, k].tolist(), one) for k, one in enumerate(before)
        ]
        clients = responsibility.sum(0) + self.pseudo_count
        return Server(tree.stack(moved), clients / clients.sum(), server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params:
        if isinstance(state, State):
            return tree.unstack(server.components)[state.component]
        return server.components | {SHARES: server.shares}

    def predict(self, model: Params, x: Tensor) -> Tensor:
        """A client's own component, or the ensemble: components' predictions mixed by share."""
        if SHARES not in model:
            return self.task.predict(model, x)
        centres = tree.unstack({n: v for n, v in model.items() if n != SHARES})
        outputs = torch.stack([self.task.predict(centre, x) for centre in centres])
        shares = model[SHARES].view(-1, *[1] * (outputs.dim() - 1))
        if self.task.kind == "classes":
            return torch.logsumexp(outputs.log_softmax(-1) + shares.log(), 0)
        if self.task.kind in {"binary", "labels"}:
            return torch.logit((outputs.sigmoid() * shares).sum(0))
        return (outputs * shares).sum(0)

    def _mean(self, replies: Sequence[Up], shares: list[float], before: Params) -> Params:
        if not sum(shares):
            return before
        return tree.weighted_mean((r.weights, s) for r, s in zip(replies, shares, strict=True))

    def _summed_loss(self, centre: Params, data: Batches) -> Tensor:
        tally = sum(self.task.tally(self.task.predict(centre, b.x), b.y) for b in data.ordered())
        return torch.tensor(self.task.mean_loss(torch.as_tensor(tally)) * data.examples)
