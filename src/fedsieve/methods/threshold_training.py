"""The client's step of SpaFL: weights and pruning thresholds trained on one client.

Paper    "SpaFL: Communication-Efficient Federated Learning with Sparse Models and Low Computational
         Overhead", 2024 (specification spafl, sections 2 to 4 and 7).
Symbols  w -> weights   tau -> thresholds   p -> mask   alpha -> sparsity_weight   eta -> lr
Differs  mini-batches of `steps` in place of epochs are divided in the proportion of epochs.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.graph import Layer
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Mask, Params
from fedsieve.core.method import Batch, Batches, Task
from fedsieve.core.options import in_range
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser, undecayed
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import compaction, masks
from fedsieve.sparsity.thresholds import Granularity, Penalty, Slope, Thresholding, penalty


class Local(NamedTuple):
    """What a client trains; thresholds go by the name of their weight."""

    weights: Params
    thresholds: Params


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


@dataclass(frozen=True, kw_only=True)
class ThresholdTraining:
    """Options of local training, and the training itself."""

    task: Task
    lr: float = 1.0  # eta, of weights and thresholds
    schedule: Schedule = Cosine(floor=0.02)  # of the learning rate, over rounds
    optimiser: Optimiser = SGD()  # of weights and thresholds; its decay is weights'
    persist_momentum: bool = True  # momentum lives on over rounds
    clip_norm: float | None = 1.0  # largest norm of the gradient of weights and thresholds
    granularity: Granularity = "element"  # a threshold keeps single weights, or whole rows
    unmasked: tuple[str, ...] | None = None  # layers without thresholds; none: the output layer
    training: Literal["joint", "split", "split_joint"] = "joint"  # split: thresholds in last epoch
    refresh_mask: bool = True  # split: masks follow the thresholds in the last epoch
    weight_ste: bool = True  # weights get the gradient through their magnitude, pruned ones too
    ste: Slope = "identity"  # derivative in place of the step function's; window: within 1
    sparsity_weight: float = 2.5  # alpha, of all steps of the run together; see spread_over
    spread_over: int | None = None  # rounds alpha is spread over; none: all; 0: it is of each step
    regulariser: Penalty = "exp"  # R(tau): exp(-tau) or 1 / (max(tau, 0) + 0.1)
    reg_warmup: float | None = 1.0  # P: the regulariser counts sigmoid(10 round / P - 5)
    clamp: bool = False  # masked weights to [-1, 1], thresholds to [0, 1] after every step
    reset_density: float = 0.01  # a layer this empty gets thresholds 0; 0 never
    prune_norms: bool = False  # a pruned filter takes its normalisation with it, so is cuttable
    compact_training: bool = False  # pruned filters are cut out of every step

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

    def train(
        self, own: Local, moments: tuple[Moments, ...], data: Batches, rounds: int, key: Key
    ) -> Trained:
        """One round of local work from `own`, the server's round being `rounds`."""
        mask: Mask = {}
        losses, processed, steps = 0.0, 0, 0
        for number, phase in enumerate(self._phases(data, key)):
            trained = local.train(
                self._objective(phase, self._price(rounds, data.steps), mask),
                own,
                phase.batches,
                phase.moving,
                lr=self.lr * self.schedule.factor(rounds),
                key=fold(key, "phase", number) if number else key,
                fixed=self.task.buffers,
                moments=moments,
                clip_norm=self.clip_norm,
                project=self._clamped if self.clamp else None,
            )
            own, moments = trained.params, trained.moments
            losses += trained.loss * trained.steps
            processed, steps = processed + trained.processed, steps + trained.steps
        whole = {n: m.expand_as(own.weights[n]) for n, m in mask.items()}
        return Trained(own, moments, whole, losses / max(steps, 1), processed, steps)

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

        def objective(own: Local, batch: Batch, key: Key) -> Tensor:
            for name, tau in own.thresholds.items():
                is_reset = name in mask and self.rule.is_reset_after(mask[name])
                if is_reset:
                    tau.data.zero_()
                if is_reset or phase.is_refreshed or name not in mask:
                    mask[name] = self.rule.kept(own.weights[name], tau)
            used, cuts = self._effective(own, mask)
            loss = self.task.loss(used, batch, key)
            for name in self.task.buffers:
                if used[name] is not own.weights[name]:  # statistics of cut channels rest
                    own.weights[name].index_copy_(0, cuts[name][0], used[name])
            if not price:
                return loss
            return loss + price * self._penalty(own.thresholds)

        return objective

    def _effective(self, own: Local, mask: Mask) -> tuple[Params, compaction.Indices]:
        """What the forward pass sees: masked weights, if compact without channels that are 0."""
        (weights, thresholds), kept, found = own, mask, compaction.Indices()
        norms, graph = self._norms_kept(mask), self.task.graph
        weights = weights | {n: weights[n] * m for n, m in norms.items()}
        if self.compact_training:
            found = compaction.indices(graph, compaction.written_channels(graph, mask | norms))
            weights, thresholds, kept = (
                compaction.take(part, found, (0,)) for part in (weights, thresholds, mask)
            )
        # Magnitudes are means over whole rows: inputs are cut when they have been found.
        masked = {
            n: weights[n] * self.rule.step(weights[n], tau, kept[n])
            for n, tau in thresholds.items()
        }
        return compaction.take(weights | masked, found, (1,)), found

    def pruned(self, own: Local) -> Params:
        """The model without what its thresholds prune."""
        mask = self.rule.settled(*own)[1]
        return masks.apply(own.weights, mask | self._norms_kept(mask))

    def _norms_kept(self, mask: Mask) -> Mask:
        """Where scales and shifts of normalisations stay; {} if all do."""
        if not self.prune_norms:
            return {}
        found = compaction.norm_masks(self.task.graph, mask)
        return {n: m for n, m in found.items() if n not in self.task.buffers}

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

    def _clamped(self, own: Local) -> Local:
        weights = {x.weight: own.weights[x.weight].clamp(-1, 1) for x in self.masked}
        return Local(own.weights | weights, {n: t.clamp(0, 1) for n, t in own.thresholds.items()})
