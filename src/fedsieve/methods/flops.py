"""FLoPS: gates and weights by synchronous gradient averaging under a constraint on density.

Paper    "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025,
         Algorithm 1 (specification flops, sections 1 to 4).
Symbols  w -> server.weights   a -> server.gate_logits   lambda -> server.dual   n(B) -> hold
         E -> rounds / hold   prune start -> scale_from   eta_w, eta_a, eta_lambda -> lr, gate_lr,
         dual_lr
Differs  a round is one gradient step, its cohort is held for n(B) of them. The paper's scaling
         rule cannot prune (section 4): the additive one is the default. Weights start as the
         model's own initialisation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Change, Count, Dense, Examples, Params
from fedsieve.core.method import Batch, Batches, Cohort, Method, Metrics, Report, Round, register
from fedsieve.core.options import in_range
from fedsieve.methods.gated import GatedWeights
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, ascend
from fedsieve.optim.schedules import ramp_in_run

PAPER = {
    "target_density": 0.05,
    "units": "weights(biases=True)",
    "ramp": 0,
    "stepwise": True,
    "hold": 20,
    "scale_from": 25,
    "scale_rate": 0.3,
    "start_open": 0.95,
    "lr": 0.1,
    "clip_norm": None,
    "schedule": "constant",
}


class Server(NamedTuple):
    weights: Params
    gate_logits: Params
    dual: Tensor
    steps: int


class Down(NamedTuple):
    weights: Dense
    gate_logits: Dense
    rounds: Count


class Up(NamedTuple):
    weights: Change
    gate_logits: Change
    examples: Examples
    steps: Count


class Gated(NamedTuple):
    weights: Params
    gate_logits: Params


@register("flops")
@dataclass(frozen=True, kw_only=True)
class Flops(GatedWeights, Method[Server, tuple[()], Down, Up]):
    """One exchange of gradients for every step; exactly m weights are deployed."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    ramp: int | None = None  # rounds until density has fallen from 1; none: 2/3 of all; paper: 0
    start_open: float = 0.99  # initial gates have logit log(start_open / (1 - start_open))
    stepwise: bool = False  # a round is one step, as in the paper; else the job's local steps
    hold: int = 1  # rounds with one cohort; the paper: n(B)
    scale_from: int = 1  # the cohort after which gate logits are first scaled
    scale_rate: float = 1.0  # r: by how much scaling raises the logits of kept gates
    closing: float = 1.0  # share of r by which it lowers the others; 1 in the paper
    weighting: Literal["samples", "uniform"] = "uniform"  # clients count by examples or equally

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("hold", self.hold, 1)
        in_range("scale_from", self.scale_from, 1)

    def in_run(self, rounds: int) -> Self:
        return replace(super().in_run(rounds), ramp=ramp_in_run(self.ramp, rounds, parts=3))

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        return Server(weights, self.init_logits(key), torch.zeros(()), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def cohort(self, size: int, done: int) -> Cohort:
        return Cohort(size, draw=done // self.hold)

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.weights, server.gate_logits, server.steps)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        start = Gated(down.weights, down.gate_logits)

        def objective(at: Gated, batch: Batch, key: Key) -> Tensor:
            return self.loss(at.weights, at.gate_logits, batch, key)

        batches = data.work(key)
        if self.stepwise:
            batches = iter([data.draw(fold(key, "batch"))])
        factor = self.schedule.factor(down.rounds)
        trained = local.train(
            objective,
            start,
            batches,
            (SGD(), SGD()),
            lr=(self.lr * factor, self.gate_lr * factor),
            key=key,
            fixed=self.task.buffers,
            clip_norm=(self.clip_norm, None),
        )
        lost = [tree.subtract(a, b) for a, b in zip(start, trained.params, strict=True)]
        density = self.density(down.gate_logits).item()
        values = {"train_loss": trained.loss, "expected_density": density}
        metrics = Metrics(trained.processed, values)
        return Up(lost[0], lost[1], data.examples, trained.steps), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies = round.replies
        shares = [r.examples if self.weighting == "samples" else 1 for r in replies]
        step = tree.weighted_mean((r.weights, c) for r, c in zip(replies, shares, strict=True))
        open_ = tree.weighted_mean((r.gate_logits, c) for r, c in zip(replies, shares, strict=True))
        weights = {n: w - step[n] for n, w in server.weights.items()}
        density, slopes = self.slope(server.gate_logits)
        steps = sum(r.steps for r in replies) / len(replies)
        pull = steps * self.gate_lr * self.schedule.factor(server.steps) * server.dual
        logits = self.clamp(
            {n: a - open_[n] - pull * slopes[n] for n, a in server.gate_logits.items()}
        )
        wanted = self.density_after(server.steps + 1)
        dual = ascend(server.dual, density - wanted, steps * self.dual_lr)
        cohorts, is_over = divmod(server.steps + 1, self.hold)
        if not is_over and cohorts >= self.scale_from:
            kept = self.budget(server.steps + 1)
            logits = self.scale(logits, self.largest(weights, logits, kept))
        return Server(weights, logits, dual, server.steps + 1)

    def report(self, server: Server) -> Report:
        return Report(gates=self.test_gates(server.gate_logits))

    def model(self, server: Server, state: tuple[()]) -> Params:
        weights, logits = server.weights, server.gate_logits
        chosen = self.largest(weights, logits, self.budget(server.steps))
        return self.cut(weights, self.test_gates(logits), chosen)
