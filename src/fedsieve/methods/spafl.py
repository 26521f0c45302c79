"""SpaFL: personal sparse models; only one threshold per neuron or filter ever travels.

Paper    "SpaFL: Communication-Efficient Federated Learning with Sparse Models and Low Computational
         Overhead", 2024, Algorithm 1 (specification spafl, sections 1, 5 and 10).
Symbols  w_k -> state.own.weights   tau -> thresholds   p -> mask   alpha -> sparsity_weight
         Delta -> change   nu -> importance_norm   eta -> lr
Differs  text and released program disagree; the presets `paper` and `code` follow one each. The
         default masks single weights, trains as the program does, with clipped steps whose rate
         falls over the run, spreads alpha over its length, and leaves the output layer whole. Delta
         is sent, though the paper does not count it, to clients that cannot know it. A reset layer
         is open in all of an evaluation, not from its second mini-batch on. Biases of masked layers
         (fc of resnet8) stay and are never masked; the paper's masked layers have none. The inverse
         regulariser reads |tau| as max(tau, 0): see `thresholds.penalty`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from fedsieve.core import tree
from fedsieve.core.graph import Layer
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Params, count_nonzero
from fedsieve.core.method import Batches, Cohort, Method, Metrics, Round, register
from fedsieve.methods.threshold_training import Local, ThresholdTraining, Trained
from fedsieve.optim.optimisers import Moments


class Server(NamedTuple):
    thresholds: Params
    change: Params  # of the thresholds in the last round
    norms: Params  # shared affine values of normalisation; empty unless communicate_norm
    rounds: int


class State(NamedTuple):
    own: Local  # weights are never sent: masked and unmasked layers, normalisation, statistics
    heard: Params  # the server's thresholds as last received, where all clients hear them
    moments: tuple[Moments, ...]


class Down(NamedTuple):
    thresholds: Dense
    change: Dense
    norms: Dense
    rounds: Count


class Up(NamedTuple):
    thresholds: Dense
    norms: Dense


TRAINING = {
    "lr": 0.01,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
    "clip_norm": None,
    "sparsity_weight": 0.002,
    "spread_over": 0,
    "unmasked": (),
}
CODE = TRAINING | {
    "granularity": "filter",
    "training": "joint",
    "weight_ste": True,
    "clamp": False,
    "persist_momentum": True,
    "reg_warmup": 1.0,
    "importance_norm": "kernel",
    "importance_scope": "sampled",
    "receivers": "sampled",
}
CODE_CIFAR = CODE | {"ste": "inverted", "importance_scope": "all", "persist_momentum": False}
PAPER = TRAINING | {
    "granularity": "element",
    "training": "split",
    "weight_ste": False,
    "clamp": True,
    "reg_warmup": None,
    "importance_norm": "fan_in",
    "importance_scope": "all",
    "receivers": "all",
}


@register("spafl")
@dataclass(frozen=True, kw_only=True)
class SpaFL(ThresholdTraining, Method[Server, State, Down, Up]):
    """Thresholds are averaged over clients; weights stay where they are."""

    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "code": CODE,
        "code_cifar10": CODE_CIFAR | {"reg_warmup": None, "clip_norm": 3.0},
        "code_cifar100": CODE_CIFAR | {"clip_norm": 15.0},
        "paper": PAPER,
    }
    share: bool = True  # exchange thresholds; without it every client is for itself
    receivers: Literal["sampled", "all"] = "sampled"  # who takes over the server's thresholds
    importance: bool = True  # weights follow the change of the server's thresholds
    importance_scope: Literal["sampled", "all"] = "sampled"  # whose weights do
    importance_norm: Literal["fan_in", "kernel"] = "kernel"  # nu: all inputs, or height * width
    communicate_norm: bool = False  # affine normalisation after convolutions is averaged, too

    def in_run(self, rounds: int) -> Self:
        spread_over = rounds if self.spread_over is None else self.spread_over
        return replace(super().in_run(rounds), spread_over=spread_over)

    @property
    def _reaches_all(self) -> bool:
        scope = self.importance_scope if self.importance else "sampled"
        return self.share and "all" in {self.receivers, scope}

    def init_server(self, key: Key) -> Server:
        own = self.init_client(0, key).own
        zeros = own.thresholds if self.share else {}
        return Server(zeros, zeros, self._norms(own.weights), 0)

    def init_client(self, client: int, key: Key) -> State:
        zeros = {x.weight: torch.zeros(x.shape[0]) for x in self.masked}
        weights = self.task.init_params(fold(key, "weights"))
        return State(Local(weights, zeros), zeros if self._reaches_all else {}, ())

    def cohort(self, size: int, done: int) -> Cohort:
        return Cohort(size, draw=done, reaches_all=self._reaches_all)

    def broadcast(self, server: Server, key: Key) -> Down:
        # Whoever hears every broadcast knows the change.
        change = server.change if self.importance and not self._reaches_all else {}
        return Down(server.thresholds, change, server.norms, server.rounds)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        own = self._heard(down, state, is_sampled=True)
        trained = self.train(own, state.moments, data, down.rounds, key)
        sent = trained.own.thresholds if self.share else {}
        settled, _ = self.rule.settled(*trained.own)
        after = State(
            Local(trained.own.weights, settled),
            down.thresholds if self._reaches_all else {},
            trained.moments if self.persist_momentum else (),
        )
        values = {"train_loss": trained.loss, **self._flops(trained, down.rounds)}
        metrics = Metrics(trained.processed, values, trained.mask)
        return Up(sent, self._norms(trained.own.weights)), after, metrics

    def observe(self, down: Down, state: State) -> State:
        return state._replace(own=self._heard(down, state), heard=down.thresholds)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        thresholds, norms = (tree.weighted_mean((r[i], 1) for r in round.replies) for i in (0, 1))
        change = tree.subtract(thresholds, server.thresholds)
        return Server(thresholds, change, norms, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        if not isinstance(state, State):
            return None
        own = state.own
        if self._reaches_all:  # the new thresholds are on their way
            own = self._heard(Down(server.thresholds, {}, server.norms, server.rounds), state)
        return self.pruned(own)

    def paper_bytes(self, message: Down | Up) -> int:
        parts = (message.thresholds, message.norms)
        return 4 * sum(t.numel() for part in parts for t in part.values())

    def _heard(self, down: Down, state: State, *, is_sampled: bool = False) -> Local:
        """A client's own after a broadcast (section 5, steps 2 and 3)."""
        weights, thresholds = state.own
        if not self.share:
            return state.own
        if is_sampled or self.receivers == "all":
            thresholds, weights = down.thresholds, weights | down.norms
        if self.importance and (is_sampled or self.importance_scope == "all"):
            change = down.change or tree.subtract(down.thresholds, state.heard)
            weights = weights | {
                x.weight: self._follow(weights[x.weight], change[x.weight], x) for x in self.masked
            }
        return Local(weights, thresholds)

    def _follow(self, weight: torch.Tensor, change: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Rising thresholds shrink the dominant side of a row: w - sign(sum w) Delta / nu."""
        is_kernel = self.importance_norm == "kernel" and layer.kind in {"conv", "depthwise"}
        count = math.prod(layer.shape[2:] if is_kernel else layer.shape[1:])
        rows = weight.flatten(1)
        step = rows.sum(1).sign() * change / count
        return (rows - step[:, None]).view(weight.shape)

    def _norms(self, weights: Params) -> Params:
        """Scales and shifts of normalisations right behind convolutions."""
        if not (self.communicate_norm and self.share):
            return {}
        graph = self.task.graph
        after = {x.target for x in graph.layers if x.kind == "conv"}
        names = [n for norm in graph.norms if norm.space in after for n in norm.tensors]
        return {n: weights[n] for n in names if n not in self.task.buffers}

    def _flops(self, trained: Trained, rounds: int) -> dict[str, float]:
        """MACs by the appendix (c = 1 + 2 rho) and by the released program (c = 3 rho)."""
        dense = kept = 0.0
        for x in self.task.graph.layers:
            mask = trained.mask.get(x.weight)
            share = 1.0 if mask is None else count_nonzero(mask) / mask.numel()
            dense, kept = dense + x.macs, kept + share * x.macs
        rows = sum(len(t) for t in trained.own.thresholds.values())
        size = sum(w.numel() for n, w in trained.own.weights.items() if n not in self.task.buffers)
        follows = self.importance and self.share and rounds > 0  # Delta is 0 in the first round
        return {
            "macs_appendix": trained.processed * (dense + 2 * kept) + 1.5 * size * follows,
            "macs_code": trained.processed * 3 * kept + rows * trained.steps + size,
        }
