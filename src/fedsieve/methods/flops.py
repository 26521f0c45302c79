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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.core import local, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Params
from fedsieve.core.method import Batch, Batches, Cohort, Method, Metrics, register
from fedsieve.core.optimisers import ascend
from fedsieve.core.options import in_range
from fedsieve.methods.gated import GatedWeights


class Server(NamedTuple):
    weights: Params
    gate_logits: Params
    dual: Tensor
    steps: int


class Down(NamedTuple):
    weights: Dense
    gate_logits: Dense


class Up(NamedTuple):
    weights: Dense  # gradients
    gate_logits: Dense  # gradients
    examples: Count


@register("flops")
@dataclass(frozen=True, kw_only=True)
class Flops(GatedWeights, Method[Server, tuple[()], Down, Up]):
    """One exchange of gradients for every step; exactly m weights are deployed."""

    start_open: float = 0.95  # initial gates have logit log(start_open / (1 - start_open))
    hold: int = 20  # n(B): steps with one cohort
    scale_from: int = 25  # the cohort after which gate logits are first scaled
    scale_rate: float = 0.3  # r: by how much scaling raises the logits of kept gates
    closing: float = 1.0  # share of r by which it lowers the others; 1 in the paper
    lr: float = 0.1  # eta_w, of weights
    weighting: Literal["samples", "uniform"] = "uniform"  # clients count by examples or equally

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("hold", self.hold, 1)
        in_range("scale_from", self.scale_from, 1)

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        return Server(weights, self.init_logits(key), torch.zeros(()), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def cohort(self, server: Server, size: int, done: int) -> Cohort:
        return Cohort(size, draw=done // self.hold)

    def broadcast(self, server: Server, client: int, key: Key) -> Down:
        return Down(server.weights, server.gate_logits)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        def objective(at: Down, batch: Batch, key: Key) -> Tensor:
            return self.loss(at.weights, at.gate_logits, batch, key)

        batch = data.draw(fold(key, "batch"))
        grads, loss = local.gradient(objective, down, batch, key=key, fixed=self.task.buffers)
        density = self.density(down.gate_logits).item()
        metrics = Metrics(len(batch.y), {"train_loss": loss, "expected_density": density})
        return Up(grads.weights, grads.gate_logits, data.examples), state, metrics

    def server_update(self, server: Server, replies: Sequence[Up], key: Key) -> Server:
        shares = [r.examples if self.weighting == "samples" else 1 for r in replies]
        step = tree.weighted_mean((r.weights, c) for r, c in zip(replies, shares, strict=True))
        open_ = tree.weighted_mean((r.gate_logits, c) for r, c in zip(replies, shares, strict=True))
        rates = {n: 1.0 if n in self.task.buffers else self.lr for n in step}
        weights = {n: w - rates[n] * step[n] for n, w in server.weights.items()}
        density, slopes = self.slope(server.gate_logits)
        logits = self.clamp(
            {
                n: a - self.gate_lr * (open_[n] + server.dual * slopes[n])
                for n, a in server.gate_logits.items()
            }
        )
        dual = ascend(server.dual, density - self.target_density, self.dual_lr)
        cohorts, is_over = divmod(server.steps + 1, self.hold)
        if not is_over and cohorts >= self.scale_from:
            logits = self.scale(logits, self.largest(weights, logits, self.budget))
        return Server(weights, logits, dual, server.steps + 1)

    def open_gates(self, server: Server) -> Params:
        return self.test_gates(server.gate_logits)

    def deploy(self, server: Server, state: tuple[()]) -> Params:
        weights, logits = server.weights, server.gate_logits
        chosen = self.largest(weights, logits, self.budget)
        return self.cut(weights, self.test_gates(logits), chosen)
