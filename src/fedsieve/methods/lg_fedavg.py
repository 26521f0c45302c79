"""LG-FedAvg: clients keep the first layers for themselves, the last ones are averaged.

Paper    Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
         Representations", 2020 (specification rivals, section 2).
Symbols  phi_k -> state.local   psi -> server.shared   n_k -> up.examples
Differs  the published program starts from a trained FedAvg model; ours trains it itself, in the
         first `warm_start` rounds, and clients are sent their part of it once, which is counted.
         Nobody's best model on test data is kept. Normalisation stays local.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Examples, Params, Sender
from fedsieve.core.method import Batches, Method, Metrics, PerClient, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule

PAPER = {
    "warm_start": 0,
    "lr": 0.005,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
    "weighting": "uniform",
}
CODE = PAPER | {
    "warm_start": 400,
    "shared_layers": 3,
    "lr": 0.05,
    "optimiser": "sgd(momentum=0.5)",
}


class Server(NamedTuple):
    shared: Params  # psi; while FedAvg lasts, the whole model
    base: Params  # phi of the FedAvg model, for clients without a local part; empty before
    based: Tensor  # clients that have their local part
    rounds: int


class State(NamedTuple):
    client: int
    local: Params  # phi_k; empty before there is one
    shared: Params  # psi to be scored with; empty: the server's


class Down(NamedTuple):
    shared: Dense
    base: Dense  # empty for clients that have a local part
    rounds: Count


class Up(NamedTuple):
    shared: Dense
    client: Sender
    examples: Examples


@register("lg_fedavg")
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method[Server, State, Down, Up]):
    """Local first layers, averaged last layers."""

    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"code": CODE, "paper": PAPER}
    task: Task
    shared_layers: int | None = option(
        1, "how many of the last layers are averaged; none: all of the model, as in FedAvg"
    )
    warm_start: int | None = option(
        None, "first rounds, in which all is averaged; none: half of the run; paper: 0"
    )
    scored: Literal["newest", "heard", "own"] = option(
        "newest", "the shared part of a personal model: the server's, as last sent, as last trained"
    )
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("lg_fedavg: lr", self.lr, 0, above=True)
        in_range("lg_fedavg: warm_start", self.warm_start or 0, 0)
        in_range("clip_norm", 1 if self.clip_norm is None else self.clip_norm, 0, above=True)
        if self.shared_layers is not None and self.shared_layers < 1:
            raise ConfigError(
                f"lg_fedavg: shared_layers={self.shared_layers}: give 1 or more, or none for all "
                "of the model. To share nothing use method=local_only."
            )

    def in_run(self, rounds: int) -> Self:
        first = rounds // 2 if self.warm_start is None else self.warm_start
        if first >= rounds:
            warnings.warn(
                f"lg_fedavg: warm_start={first} and the run has {rounds} rounds: it is FedAvg, and "
                "no client gets a part of its own. Lower warm_start or ask for more rounds.",
                stacklevel=2,
            )
        return replace(super().in_run(rounds), warm_start=first)

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        nobody = torch.zeros(0, dtype=torch.int64)
        return Server(weights if self.warm_start else self._divided(weights)[1], {}, nobody, 0)

    def init_client(self, client: int, key: Key) -> State:
        if self.warm_start:
            return State(client, {}, {})
        return State(client, self._divided(self.task.init_params(fold(key, "weights")))[0], {})

    def broadcast(self, server: Server, key: Key) -> PerClient[Down]:
        known = Down(server.shared, {}, server.rounds)
        new, based = known._replace(base=server.base), set(server.based.tolist())
        return PerClient(lambda client: known if client in based else new)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        own = state.local or down.base
        trained = local.train(
            self.task.loss,
            own | down.shared,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
        )
        shared = {n: trained.params[n] for n in down.shared}
        scored = {"newest": {}, "heard": down.shared, "own": shared}[self.scored]
        after = State(state.client, {n: trained.params[n] for n in own}, scored if own else {})
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(shared, state.client, data.examples), after, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        counts = [r.examples if self.weighting == "samples" else 1 for r in round.replies]
        shares = [count / sum(counts) for count in counts]
        mean = tree.weighted_mean(zip((r.shared for r in round.replies), shares, strict=True))
        done = server.rounds + 1
        if done == self.warm_start:
            base, shared = self._divided(mean)
            return Server(shared, base, server.based, done)
        if not server.base:
            return Server(mean, {}, server.based, done)
        based = sorted({*server.based.tolist(), *(r.client for r in round.replies)})
        return Server(mean, server.base, torch.tensor(based), done)

    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        if not isinstance(state, State):
            return server.shared if self.shared_layers is None else None
        return (state.local or server.base) | (state.shared or server.shared)

    def _divided(self, weights: Params) -> tuple[Params, Params]:
        """The local and the shared part of a model."""
        if self.shared_layers is None:
            return {}, weights
        last = self.task.graph.layers[-self.shared_layers :]
        names = {name for layer in last for name in (layer.weight, layer.bias)}
        own = {n: v for n, v in weights.items() if n not in names}
        return own, {n: v for n, v in weights.items() if n in names}
