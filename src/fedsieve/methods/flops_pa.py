"""FLoPS-PA: gated weights by parameter averaging; m weights and their gates travel both ways.

Paper    "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025,
         Algorithm 2 (specification flops, section 5).
Symbols  theta -> effective   z -> gates   zbar -> rest   m = floor(rho P) -> kept gates
         lambda_k -> Point.dual, 0 at the start of a round   p_k -> weighting
Differs  gates in messages are medians, the paper draws them; clients count by examples; logits
         come from inverting the stretched sigmoid, the paper's plain logit is infinite at 0 and 1;
         the paper's scaling rule cannot prune (section 4): the additive one is the default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.core import local, masks, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Kept, Mask, Params, Scalar
from fedsieve.core.method import Batches, Method, Metrics, register
from fedsieve.core.optimisers import SGD, Constant, DualAscent, Optimiser, Schedule
from fedsieve.methods.gated import Gated, Point


class Down(NamedTuple):
    mask: Bits
    effective: Annotated[Params, Kept(where="mask")]
    gates: Annotated[Params, Kept(where="mask")]
    rest: Scalar  # mean of the gates outside the mask
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    effective: Annotated[Params, Kept(where="mask")]
    gates: Annotated[Params, Kept(where="mask")]
    rest: Scalar
    examples: Count


class Server(NamedTuple):
    mask: Mask
    effective: Params
    gates: Params
    rest: float
    rounds: int


@register("flops_pa")
@dataclass(frozen=True, kw_only=True)
class FlopsPA(Gated, Method[Server, tuple[()], Down, Up]):
    """A round of local steps on weights and gates between two sparse messages."""

    inverse: Literal["stretched", "plain"] = "stretched"  # gates to logits; the paper: plain
    schedule: Schedule = Constant()  # of both learning rates, over rounds
    optimiser: Optimiser = SGD()  # of weights and gates; fresh in every round
    weighting: Literal["samples", "uniform"] = "samples"  # p_k: by examples or equally

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        return Server(*self._compress(weights, self.init_logits(key)), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, client: int, key: Key) -> Down:
        return Down(*server)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        factor = self.schedule.factor(down.rounds)
        weights, gate_logits = self._expand(down.effective, self._filled(down))
        trained = local.train(
            self.lagrangian,
            Point(weights, gate_logits, {"price": torch.zeros(())}),
            data.work(key),
            (self.optimiser, self.optimiser, DualAscent()),
            lr=(self.lr * factor, self.gate_lr * factor, self.dual_lr),
            key=key,
            fixed=self.task.buffers,
            project=lambda at: at._replace(gate_logits=self.clamp(at.gate_logits)),
        )
        gate_logits = self._scaled(trained.params.weights, trained.params.gate_logits)
        message = Up(*self._compress(trained.params.weights, gate_logits), data.examples)
        values = {
            "train_loss": trained.loss,
            "expected_density": self.gap(gate_logits).item() + self.target_density,
            "rest": message.rest,
        }
        return message, state, Metrics(trained.processed, values)

    def server_update(self, server: Server, replies: Sequence[Up], key: Key) -> Server:
        shares = [r.examples if self.weighting == "samples" else 1 for r in replies]
        pairs = list(zip(replies, shares, strict=True))
        effective = tree.weighted_mean((r.effective, share) for r, share in pairs)
        gates = tree.weighted_mean((self._filled(r), share) for r, share in pairs)
        weights, gate_logits = self._expand(effective, gates)
        gate_logits = self._scaled(weights, gate_logits)
        return Server(*self._compress(weights, gate_logits), server.rounds + 1)

    def deploy(self, server: Server, state: tuple[()]) -> Params:
        return server.effective

    def _scaled(self, weights: Params, gate_logits: Params) -> Params:
        kept = self.keep(self.effective(weights, self.closed_form(gate_logits)))
        return self.scale(gate_logits, kept, self.scale_rate)

    def _compress(self, weights: Params, gate_logits: Params) -> tuple[Mask, Params, Params, float]:
        """Mask, effective weights and gates of the m largest, and the mean of the other gates."""
        gates = self.closed_form(gate_logits)
        effective = self.effective(weights, gates)
        kept = self.keep(effective)
        others = sum(int((~k).count_nonzero()) for k in kept.values())
        left_out = sum(g[~kept[n]].sum() for n, g in gates.items())
        mask = self.units.cover(self.task.graph, kept)
        rest = float(left_out / max(others, 1))
        filled = {n: torch.where(kept[n], g, 0) for n, g in gates.items()}
        return mask, masks.apply(effective, mask), filled, rest

    def _filled(self, message: Down | Up) -> Params:
        """All gates of a message; those not sent are the mean it gives for them."""
        return {n: torch.where(g > 0, g, message.rest) for n, g in message.gates.items()}

    def _expand(self, effective: Params, gates: Params) -> tuple[Params, Params]:
        """Weights and gate logits of which these are the products and the medians.

        Algorithm 2 prints a product; with theta = w z only the quotient gives w back.
        """
        inverse = {n: torch.where(g > 0, 1 / g, 0) for n, g in gates.items()}
        return self.effective(effective, inverse), {n: self._invert(g) for n, g in gates.items()}

    def _invert(self, gates: Tensor) -> Tensor:
        beta = self.gate.beta
        if self.inverse == "plain":
            return beta * torch.logit(gates.clamp(0.01, 0.99))
        return self.gate.invert(gates) / (1 if self.test_gate == "median" else beta)
