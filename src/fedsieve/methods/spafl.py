"""SpaFL: personal sparse models; only one threshold per neuron or filter ever travels.

Paper    "SpaFL: Communication-Efficient Federated Learning with Sparse Models and Low Computational
         Overhead", 2024, Algorithm 1 (specification spafl, sections 1 to 5, 7
         and 10).
Symbols  w_k -> state.own.weights   tau -> thresholds   p -> mask   alpha -> sparsity_weight
         Delta -> change   nu -> importance_norm   eta -> lr
Differs  text and released program disagree; the presets `paper` and `code` follow one each. The
         default masks single weights, trains as the program does, with clipped steps whose rate
         falls over the run, spreads alpha over its length, and leaves the output layer whole. Delta
         is sent, though the paper does not count it, to clients that cannot know it. A reset layer
         is open in all of an evaluation, not from its second mini-batch on. Biases of masked layers
         (fc of resnet8) stay and are never masked; the paper's masked layers have none. The inverse
         regulariser reads |tau| as max(tau, 0): see `thresholds.penalty`. Mini-batches of `steps`
         in place of epochs are divided in the proportion of epochs.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.graph import Layer
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Mask, Params, count_nonzero
from fedsieve.core.method import Batch, Batches, Cohort, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser, undecayed
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import compaction, masks
from fedsieve.sparsity.thresholds import Granularity, Penalty, Slope, Thresholding, penalty


class Local(NamedTuple):
    """What a client trains; thresholds go by the name of their weight."""

    weights: Params
    thresholds: Params


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


class Trained(NamedTuple):
    own: Local
    moments: tuple[Moments, ...]
    mask: Mask  # of the last forward pass, in the shape of the weights
    loss: float
    processed: int
    steps: int


class Phase(NamedTuple):
    """Part of a round: what moves in it, and whether masks are rebuilt at every step."""

    batches: Iterable[Batch]
    moving: tuple[Optimiser | None, Optimiser | None]  # weights, thresholds
    is_refreshed: bool


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
class SpaFL(Method[Server, State, Down, Up]):
    """Personal sparse models: thresholds are averaged over clients, weights never travel."""

    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "code": CODE,
        "code_cifar10": CODE_CIFAR | {"reg_warmup": None, "clip_norm": 3.0},
        "code_cifar100": CODE_CIFAR | {"clip_norm": 15.0},
        "paper": PAPER,
    }
    task: Task
    lr: float = option(1.0, "eta, of weights and thresholds")
    schedule: Schedule = option(Cosine(floor=0.02), "of the learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of weights and thresholds; its decay is weights'")
    persist_momentum: bool = option(True, "momentum lives on over rounds")
    clip_norm: float | None = option(1.0, "largest norm of the gradient of weights and thresholds")
    granularity: Granularity = option("element", "a threshold keeps single weights, or whole rows")
    unmasked: tuple[str, ...] | None = option(
        None, "layers without thresholds; none: the output layer"
    )
    training: Literal["joint", "split", "split_joint"] = option(
        "joint", "split: thresholds in last epoch"
    )
    refresh_mask: bool = option(True, "split: masks follow the thresholds in the last epoch")
    weight_ste: bool = option(
        True, "weights get the gradient through their magnitude, pruned ones too"
    )
    ste: Slope = option("identity", "derivative in place of the step function's; window: within 1")
    sparsity_weight: float = option(2.5, "alpha, of all steps of the run together; see spread_over")
    spread_over: int | None = option(
        None, "rounds alpha is spread over; none: all; 0: it is of each step"
    )
    regulariser: Penalty = option("exp", "R(tau): exp(-tau) or 1 / (max(tau, 0) + 0.1)")
    reg_warmup: float | None = option(1.0, "P: the regulariser counts sigmoid(10 round / P - 5)")
    clamp: bool = option(False, "masked weights to [-1, 1], thresholds to [0, 1] after every step")
    reset_density: float = option(0.01, "a layer this empty gets thresholds 0; 0 never")
    prune_norms: bool = option(
        False, "a pruned filter takes its normalisation with it, so is cuttable"
    )
    compact_training: bool = option(False, "pruned filters are cut out of every step")
    share: bool = option(True, "exchange thresholds; without it every client is for itself")
    receivers: Literal["sampled", "all"] = option(
        "sampled", "who takes over the server's thresholds"
    )
    importance: bool = option(True, "weights follow the change of the server's thresholds")
    importance_scope: Literal["sampled", "all"] = option("sampled", "whose weights do")
    importance_norm: Literal["fan_in", "kernel"] = option(
        "kernel", "nu: all inputs, or height * width"
    )
    communicate_norm: bool = option(
        False, "affine normalisation after convolutions is averaged, too"
    )

    def __post_init__(self) -> None:
        in_range("spafl: lr", self.lr, 0, above=True)
        in_range("spafl: sparsity_weight", self.sparsity_weight, 0)
        in_range("spafl: spread_over", self.spread_over or 0, 0)
        in_range("spafl: reset_density", self.reset_density, 0, 1, below=True)
        for name in ("reg_warmup", "clip_norm"):
            if getattr(self, name) is not None:
                in_range(f"spafl: {name}", getattr(self, name), 0, above=True)
        layers = [x.name for x in self._layers]
        for name in self.unmasked or ():
            if name not in layers:
                raise ConfigError(unknown("spafl: unmasked layer", name, layers))
        if not self.masked:
            raise ConfigError("spafl: unmasked leaves no thresholds. Use method=local_only.")

    def in_run(self, rounds: int) -> Self:
        spread_over = rounds if self.spread_over is None else self.spread_over
        return replace(super().in_run(rounds), spread_over=spread_over)

    def init_server(self, key: Key) -> Server:
        params = self.init_client(0, key).own
        zeros = params.thresholds if self.share else {}
        return Server(zeros, zeros, self._norms(params.weights), 0)

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
        params = self._with_thresholds(down, state, is_sampled=True)
        trained = self.train(params, state.moments, data, down.rounds, key)
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
        return state._replace(own=self._with_thresholds(down, state), heard=down.thresholds)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        thresholds, norms = (tree.weighted_mean((r[i], 1) for r in round.replies) for i in (0, 1))
        change = tree.subtract(thresholds, server.thresholds)
        return Server(thresholds, change, norms, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        if not isinstance(state, State):
            return None
        params = state.own
        if self._reaches_all:  # the new thresholds are on their way
            params = self._with_thresholds(
                Down(server.thresholds, {}, server.norms, server.rounds), state
            )
        return self.pruned(params)

    def paper_bytes(self, message: Down | Up) -> int:
        parts = (message.thresholds, message.norms)
        return 4 * sum(t.numel() for part in parts for t in part.values())

    @property
    def masked(self) -> list[Layer]:
        """Layers with thresholds."""
        layers = self._layers
        if self.unmasked is None:  # a pruned output is a class that is never predicted
            return layers[:-1] or layers
        return [x for x in layers if x.name not in self.unmasked]

    @property
    def _layers(self) -> list[Layer]:
        return [x for x in self.task.graph.layers if x.kind != "embedding"]

    @property
    def rule(self) -> Thresholding:
        """How thresholds make masks."""
        return Thresholding(self.granularity, self.ste, self.weight_ste, self.reset_density)

    @property
    def _reaches_all(self) -> bool:
        scope = self.importance_scope if self.importance else "sampled"
        return self.share and "all" in {self.receivers, scope}

    def train(
        self, params: Local, moments: tuple[Moments, ...], data: Batches, rounds: int, key: Key
    ) -> Trained:
        """One round of local work from `params`, the server's round being `rounds`."""
        mask: Mask = {}
        losses, processed, steps = 0.0, 0, 0
        for number, phase in enumerate(self._phases(data, key)):
            trained = local.train(
                self._objective(phase, self._price(rounds, data.steps), mask),
                params,
                phase.batches,
                phase.moving,
                lr=self.lr * self.schedule.factor(rounds),
                key=fold(key, "phase", number) if number else key,
                fixed=self.task.buffers,
                moments=moments,
                clip_norm=self.clip_norm,
                project=self._clamped if self.clamp else None,
            )
            params, moments = trained.params, trained.moments
            losses += trained.loss * trained.steps
            processed, steps = processed + trained.processed, steps + trained.steps
        whole = {n: m.expand_as(params.weights[n]) for n, m in mask.items()}
        return Trained(params, moments, whole, losses / max(steps, 1), processed, steps)

    def _phases(self, data: Batches, key: Key) -> list[Phase]:
        still, moved, thresholds = None, self.optimiser, undecayed(self.optimiser)
        if self.training == "joint":
            return [Phase(data.work(key), (moved, thresholds), is_refreshed=True)]
        if data.epochs < 2 or data.steps < 2:
            raise ConfigError(
                f"spafl: training={self.training} moves thresholds in the last of epochs="
                f"{data.epochs} with {data.steps} mini-batches. Set 2 or more, or training=joint."
            )
        batches = list(data.work(key))
        first = len(batches) * (data.epochs - 1) // data.epochs
        last = still if self.training == "split" else moved
        weights = Phase(batches[:first], (moved, still), is_refreshed=False)
        return [weights, Phase(batches[first:], (last, thresholds), self.refresh_mask)]

    def _objective(
        self, phase: Phase, price: float, mask: Mask
    ) -> Callable[[Local, Batch, Key], Tensor]:
        price = price if phase.moving[1] is not None else 0.0

        def objective(params: Local, batch: Batch, key: Key) -> Tensor:
            for name, tau in params.thresholds.items():
                is_reset = name in mask and self.rule.is_reset_after(mask[name])
                if is_reset:
                    tau.data.zero_()
                if is_reset or phase.is_refreshed or name not in mask:
                    mask[name] = self.rule.kept(params.weights[name], tau)
            used, cuts = self._effective(params, mask)
            loss = self.task.loss(used, batch, key)
            for name in self.task.buffers:
                if used[name] is not params.weights[name]:  # statistics of cut channels rest
                    params.weights[name].index_copy_(0, cuts[name][0], used[name])
            if not price:
                return loss
            return loss + price * self._penalty(params.thresholds)

        return objective

    def _effective(self, params: Local, mask: Mask) -> tuple[Params, compaction.Indices]:
        """What the forward pass sees: masked weights, if compact without channels that are 0."""
        (weights, thresholds), kept, indices = params, mask, compaction.Indices()
        norms, graph = self._norms_kept(mask), self.task.graph
        weights = weights | {n: weights[n] * m for n, m in norms.items()}
        if self.compact_training:
            indices = compaction.indices(graph, compaction.written_channels(graph, mask | norms))
            weights, thresholds, kept = (
                compaction.take(part, indices, (0,)) for part in (weights, thresholds, mask)
            )
        # Magnitudes are means over whole rows: inputs are cut when they have been found.
        masked = {
            n: weights[n] * self.rule.step(weights[n], tau, kept[n])
            for n, tau in thresholds.items()
        }
        return compaction.take(weights | masked, indices, (1,)), indices

    def pruned(self, params: Local) -> Params:
        """The model without what its thresholds prune."""
        mask = self.rule.settled(*params)[1]
        return masks.apply(params.weights, mask | self._norms_kept(mask))

    def _norms_kept(self, mask: Mask) -> Mask:
        """Where scales and shifts of normalisations stay; {} if all do."""
        if not self.prune_norms:
            return {}
        norms_kept = compaction.norm_masks(self.task.graph, mask)
        return {n: m for n, m in norms_kept.items() if n not in self.task.buffers}

    def _penalty(self, thresholds: Params) -> Tensor:
        """R(tau); spread over a run, long rows count less, as their weights are smaller."""
        if not self.spread_over:
            return penalty(thresholds, self.regulariser)
        parts = [
            penalty({x.weight: thresholds[x.weight]}, self.regulariser)
            / math.sqrt(math.prod(x.shape[1:]))
            for x in self.masked
        ]
        return torch.stack(parts).sum()

    def _price(self, rounds: int, steps: int) -> float:
        """The regulariser's weight alpha s(t) at each of so many steps of a round."""
        grown = math.inf if self.reg_warmup is None else 10 * rounds / self.reg_warmup - 5
        alpha = self.sparsity_weight
        if self.spread_over:
            alpha /= self.spread_over * max(steps, 1)
        return alpha / (1 + math.exp(-grown))

    def _clamped(self, params: Local) -> Local:
        weights = {x.weight: params.weights[x.weight].clamp(-1, 1) for x in self.masked}
        return Local(
            params.weights | weights, {n: t.clamp(0, 1) for n, t in params.thresholds.items()}
        )

    def _with_thresholds(self, down: Down, state: State, *, is_sampled: bool = False) -> Local:
        """A client's own after a broadcast (section 5, steps 2 and 3)."""
        weights, thresholds = state.own
        if not self.share:
            return state.own
        if is_sampled or self.receivers == "all":
            thresholds, weights = down.thresholds, weights | down.norms
        if self.importance and (is_sampled or self.importance_scope == "all"):
            change = down.change or tree.subtract(down.thresholds, state.heard)
            weights = weights | {
                x.weight: self._importance_update(weights[x.weight], change[x.weight], x)
                for x in self.masked
            }
        return Local(weights, thresholds)

    def _importance_update(self, weight: Tensor, change: Tensor, layer: Layer) -> Tensor:
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
