"""PFNM: clients' neurons are matched to global atoms; the fused network finds its own width.

Paper    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML
         2019, with its program (specification neural_matching, sections 3, 6, 8 and 9).
Symbols  theta -> server.weights   A^s -> server.labels   J_s -> width   gamma_0 -> gamma0
         sigma^2, sigma_0^2 -> sigma2, sigma0_2 (variances)   f_sk -> shares of up.classes
Differs  convolution filters are matched as neurons are. The program has all clients in every
         round; here those of the round are matched, and one that was not in the round before
         starts from the most used atoms. A client without a network starts from its own draw.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsieve.core import keys, tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Exact, Params, Sender
from fedsieve.core.method import (
    Batch,
    Batches,
    Method,
    Metrics,
    PerClient,
    Report,
    Round,
    Task,
    register,
)
from fedsieve.core.options import in_range, option
from fedsieve.inference.priors import Gaussian
from fedsieve.matching import Settings, match_networks, visiting_orders
from fedsieve.matching.costs import PresetName
from fedsieve.matching.labels import atoms_of, labels_to_tensors
from fedsieve.matching.layout import Layout, layout_of
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule

CLASSES = "classes"


PAPER = {
    "costs": "paper",
    "sigma0_2": (1.0,),
    "lr": 0.01,
    "clip_norm": None,
    "schedule": "exponential(0.99)",
    "optimiser": "adam(amsgrad=True)",
}


class Server(NamedTuple):
    weights: Params
    labels: Params  # "client.layer" -> atoms, of the clients matched last
    steps: Params  # "layer" -> (re-matchings, 4): whose reply, objective before and after, atoms
    energies: Tensor  # of the layers
    rounds: int


class State(NamedTuple):
    client: int
    weights: Params  # as last trained; empty before


class Down(NamedTuple):
    weights: Dense  # the client's part of the global network; empty in the first round
    rounds: Count


class Up(NamedTuple):
    weights: Dense
    classes: Exact  # how many examples of each class
    client: Sender


@register("pfnm")
@dataclass(frozen=True, kw_only=True)
class Pfnm(Method[Server, State, Down, Up]):
    """Probabilistic federated neural matching: the fused network finds its own width."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "pfnm-code": PAPER | {"costs": "pfnm-code"},
    }
    same_entries = False  # neurons of different clients stand in different places
    takes_start = False  # clients draw first networks of their own widths
    task: Task
    sigma2: tuple[float, ...] = option(
        (1.0,), "variance of neurons around their atom; one, or per layer"
    )
    sigma0_2: tuple[float, ...] = option((1000.0,), "variance of atoms around the prior mean")
    gamma0: tuple[float, ...] = option((1.0,), "mass of the Beta process: more keeps more atoms")
    costs: PresetName = option("paper", "of matching, or those of the published program")
    padding: Literal["full", "zero"] = option(
        "full", "weights to neurons a client lacks: 0, or unknown"
    )
    sweeps: int = option(5, "re-matchings of all clients in the first round")
    later_sweeps: int = option(3, "and in later ones, which start from the labels before")
    width_shares: tuple[float, ...] = option(
        (1.0,), "client c has width_shares[c mod length] of the width"
    )
    reg: float = option(1e-6, "L2 in the first round, then a tie to where the round started")
    reg_factor: float = option(0.0, "of the tie, from each round to the next")
    first_epochs: int | None = option(None, "passes in the first round, in place of `epochs`")
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")

    def __post_init__(self) -> None:
        layers = len(self._layout.hidden)
        self.settings.rules(layers)
        self.settings.variances(layers)
        for share in self.width_shares or (0.0,):
            in_range("pfnm: width_shares", share, 0, 1, above=True)
        for name in ("sweeps", "later_sweeps", "reg", "reg_factor"):
            in_range(f"pfnm: {name}", getattr(self, name), 0)
        in_range("pfnm: first_epochs", 1 if self.first_epochs is None else self.first_epochs, 1)
        in_range("pfnm: lr", self.lr, 0, above=True)
        in_range("pfnm: clip_norm", 1 if self.clip_norm is None else self.clip_norm, 0, above=True)
        if self.task.kind != "classes":
            raise ConfigError(f"pfnm: the data has {self.task.kind}, matching needs classes.")

    @property
    def settings(self) -> Settings:
        """Hyper-parameters of the matching."""
        return Settings(
            preset=self.costs,
            sigma2=self.sigma2,
            sigma0_2=self.sigma0_2,
            gamma0=self.gamma0,
            padding=self.padding,
        )

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), {}, {}, torch.zeros(0), 0)

    def init_client(self, client: int, key: Key) -> State:
        return State(client, {})

    def broadcast(self, server: Server, key: Key) -> PerClient[Down]:
        return PerClient(lambda client: Down(self.part_of(client, server), server.rounds))

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        first = down.weights or self.fresh(state.client, fold(key, "weights"))
        if down.rounds == 0:
            prior, centre = Gaussian(self.reg), tree.map_leaves(torch.zeros_like, first)
        else:
            tie = self.reg * self.reg_factor ** (down.rounds - 1)
            prior, centre = Gaussian(tie), {n: first[n] for n in self.task.graph.maskable}

        def objective(weights: Params, batch: Batch, key: Key) -> Tensor:
            loss = self.task.loss(weights, batch, key)
            penalty = prior.penalty({n: weights[n] for n in centre}, centre)
            return loss if penalty is None else loss + penalty

        trained = local.train(
            objective,
            first,
            self._work(data, down.rounds, key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            clip_norm=self.clip_norm,
        )
        up = Up(trained.params, {CLASSES: self._classes(data)}, state.client)
        used = self._layout.used(first)
        metrics = Metrics(trained.processed, {"train_loss": trained.loss}, used)
        return up, State(state.client, trained.params), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        layout, replies = self._layout, round.replies
        clients = [reply.client for reply in replies]
        before = (atoms_of(server.labels, c, self._widths(c)) for c in clients)
        known = [atoms for atoms in before if atoms is not None]
        is_warm = len(known) == len(replies)
        sweeps = self.later_sweeps if is_warm else self.sweeps
        matching = match_networks(
            [layout.network(reply.weights) for reply in replies],
            np.stack([reply.classes[CLASSES].numpy() for reply in replies]),
            self.settings,
            visiting_orders(fold(key, "matching"), len(layout.hidden), sweeps, len(replies)),
            start=list(zip(*known, strict=True)) if is_warm else None,
            blocks=layout.blocks,
        )
        steps = {
            str(layer): torch.tensor(matched.steps, dtype=torch.float64).reshape(-1, 4)
            for layer, matched in enumerate(matching.layers)
        }
        weights = layout.params(matching.global_weights)
        labels = labels_to_tensors(clients, matching.assignments)
        energies = torch.tensor([x.energy for x in matching.layers], dtype=torch.float64)
        return Server(weights, labels, steps, energies, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params:
        return server.weights

    def report(self, server: Server) -> Report:
        widths = [len(server.weights[str(x.bias)]) for x in self._layout.layers[:-1]]
        return Report({f"atoms_{i}": float(width) for i, width in enumerate(widths, 1)})

    def part_of(self, client: int, server: Server) -> Params:
        """A client's part of the global network; empty before there is one."""
        atoms = atoms_of(server.labels, client, self._widths(client))
        return {} if atoms is None else self._layout.part(server.weights, atoms)

    @property
    def _layout(self) -> Layout:
        return layout_of(self.task.graph, "pfnm")

    def _widths(self, client: int) -> list[int]:
        share = self.width_shares[client % len(self.width_shares)]
        return [max(1, round(share * width)) for width in self._layout.hidden]

    def fresh(self, client: int, key: Key) -> Params:
        """A first network of the client's own widths: weights N(0, 0.01), biases 0.1."""
        whole = {
            name: 0.1
            * (keys.normal(fold(key, name), x.shape) if x.dim() > 1 else torch.ones_like(x))
            for name, x in self.task.init_params(key).items()
        }
        return self._layout.part(whole, [np.arange(width) for width in self._widths(client)])

    def _work(self, data: Batches, rounds: int, key: Key) -> Iterator[Batch]:
        if rounds or self.first_epochs is None:
            return data.work(key)
        passes = range(self.first_epochs)
        return (batch for i in passes for batch in data.epoch(fold(key, "epoch", i)))

    def _classes(self, data: Batches) -> Tensor:
        y = torch.cat([batch.y for batch in data.ordered()])
        return y.bincount(minlength=self._layout.layers[-1].shape[0]).to(torch.int32)
