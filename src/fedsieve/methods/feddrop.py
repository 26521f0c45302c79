"""FedDrop: every client trains a submodel of its own, cut out of the server's by dropping units.

Paper    Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource
         Requirements", 2018; as a baseline of FedSparse (specification fedsparse, sections 1
         and 5).
Symbols  1 - p -> share of a layer's units that a submodel keeps   z -> units, fixed by a key
Differs  exactly round(p n) of n units are dropped, so that all submodels have one shape. Inputs
         and outputs are kept: the 1 % of the FedSparse paper is less than one unit of up to 49.
         Activations are scaled by 1 / (1 - p) in training. The server takes an optimiser step on
         the mean over the clients that held a coordinate; sgd with server_lr=1 is the mean itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedsieve.core import keys, tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Examples, Mask, Params
from fedsieve.core.method import Batches, Method, Metrics, PerClient, Round, register
from fedsieve.core.options import in_range, option
from fedsieve.methods.em import HardEM, Server
from fedsieve.methods.fedavg import PAPER, Memory, Own
from fedsieve.optim.optimisers import SGD, Optimiser, init_moments, update
from fedsieve.sparsity.compaction import compact, restore


class Down(NamedTuple):
    weights: Dense  # of the submodel
    units: Count  # the key of the units it has
    rounds: Count


class Up(NamedTuple):
    weights: Dense
    units: Count
    examples: Examples


@dataclass(frozen=True)
class Dropped:
    """Fixed gates: weights that read a thinned layer count for those dropped beside them."""

    scale: dict[str, float]

    def effective(self, local: Params, key: Key) -> Params:
        return {n: w * self.scale[n] if n in self.scale else w for n, w in local.items()}

    def penalty(self, local: Params, centre: None) -> Tensor | None:
        return None


@register("feddrop")
@dataclass(frozen=True, kw_only=True)
class FedDrop(HardEM, Method[Server, Memory, Down, Up]):
    """Federated dropout of units; submodels are sent small and trained small."""

    same_entries = False  # submodels have different units
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            **PAPER,
            "conv_drop": 0.1,
            "fc_drop": 0.5,
            "lr": 0.05,
            "server_optimiser": "adam",
            "server_lr": 1e-3,
            "weighting": "uniform",
        }
    }
    conv_drop: float = option(0.0, "share of a convolution's filters that a submodel lacks")
    fc_drop: float = option(0.1, "share of a linear layer's units that a submodel lacks")
    server_optimiser: Optimiser = option(SGD(), "of the server's step along the mean difference")
    server_lr: float = option(1.0, "its learning rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("feddrop: conv_drop", self.conv_drop, 0, 1, below=True)
        in_range("feddrop: fc_drop", self.fc_drop, 0, 1, below=True)
        in_range("feddrop: server_lr", self.server_lr, 0, above=True)
        if not self._sizes:
            raise ConfigError(
                "feddrop: no layer of this model has units that can be cut out (GroupNorm and "
                "LayerNorm tie them together). Use a model without these, or fedsparse."
            )

    @property
    def prior(self) -> Dropped:
        space = self.task.graph.space
        return Dropped(
            {
                x.weight: space[x.source].size / self._sizes[x.source]
                for x in self.task.graph.layers
                if x.source in self._sizes
            }
        )

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        return Server(weights, init_moments(self.server_optimiser, self.trainable(weights)), 0)

    def init_client(self, client: int, key: Key) -> Memory:
        return self.remember({})

    def broadcast(self, server: Server, key: Key) -> PerClient[Down]:
        def submodel(client: int) -> Down:
            units = keys.torch_seed(fold(key, "units", client))
            small = compact(self.task.graph, server.weights, self._held(units))
            return Down(small, units, server.rounds)

        return PerClient(submodel)

    def client_update(
        self, down: Down, state: Memory, data: Batches, key: Key
    ) -> tuple[Up, Memory, Metrics]:
        trained = self.e_step(self.prior, None, down.weights, down.rounds, data, key)
        new_state = self.remember(self.prior.effective(trained.params, key))
        metrics = Metrics(trained.processed, {"train_loss": trained.loss}, self._mask(down))
        return Up(trained.params, down.units, data.examples), new_state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies, shares = round.replies, self.shares(round.replies)
        nothing = {n: torch.zeros_like(w) for n, w in server.weights.items()}
        moved, held = tree.clone((nothing, nothing))
        for reply, share in zip(replies, shares, strict=True):
            alive = self._held(reply.units)
            client_weights = restore(self.task.graph, reply.weights, alive, server.weights)
            ones = {n: torch.ones_like(w) for n, w in reply.weights.items()}
            counted = restore(self.task.graph, ones, alive, nothing)
            for name, weight in server.weights.items():
                moved[name] += share * (weight - client_weights[name])
                held[name] += share * counted[name]
        gradient = {n: m / held[n].where(held[n] > 0, 1) for n, m in moved.items()}
        weights, moments = update(
            self.server_optimiser,
            self.trainable(server.weights),
            self.trainable(gradient),
            server.moments,
            self.server_lr,
        )
        statistics = {n: server.weights[n] - gradient[n] for n in sorted(self.task.buffers)}
        return Server(weights | statistics, moments, server.rounds + 1)

    def model(self, server: Server, state: Memory) -> Params | None:
        return (state.weights or None) if isinstance(state, Own) else server.weights

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Units that a submodel keeps of each space it can be cut from."""
        graph = self.task.graph
        fixed = {x.target for x in graph.layers if x.kind == "depthwise"}
        rates = {
            x.target: self.conv_drop if x.kind == "conv" else self.fc_drop for x in graph.layers
        }
        return {
            s.name: s.size - round(rates[s.name] * s.size)
            for s in graph.spaces
            if s.is_cuttable and s.name not in fixed
        }

    def _mask(self, down: Down) -> Mask:
        """The weights of the whole model that a submodel has."""
        whole = {x.weight: torch.zeros(x.shape, dtype=torch.bool) for x in self.task.graph.layers}
        ones = {n: torch.ones_like(down.weights[n], dtype=torch.bool) for n in whole}
        return restore(self.task.graph, ones, self._held(down.units), whole)

    def _held(self, units: int) -> Mask:
        """The units of a submodel, from the key that both ends know."""
        held = {s.name: torch.ones(s.size, dtype=torch.bool) for s in self.task.graph.spaces}
        for name, kept in self._sizes.items():
            chosen = keys.sample(fold(units, name), len(held[name]), kept)
            held[name] = torch.zeros_like(held[name])
            held[name][chosen] = True
        return held
