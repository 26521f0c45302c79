"""FLoPS-PA: gated weights by parameter averaging; m weights and their gates travel both ways.

Paper    "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025,
         Algorithm 2 (specification flops, section 5).
Symbols  theta -> effective   z -> gates   zbar -> rest   m = floor(rho P) -> kept
         lambda_k -> Point.dual, 0 at the start of a round   p_k -> weighting
Differs  gates in messages are medians, the paper draws them; clients count by examples; logits
         come from inverting the stretched sigmoid, the paper's plain logit is infinite at 0 and 1;
         the paper's scaling rule cannot prune (section 4): the additive one is the default. Other
         gates are not closed (closing=0): weights outside the mask start every round at 0, and only
         open gates let them come back. The first message of a deep net has a like share of every
         layer and its norm, and gradients are clipped: one setting serves linear and deep models. A
         channel that was cut has no gradient: the first round is whole, and channels are chosen
         after it. `target_bytes`: m follows from what messages cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params, Scalar
from fedsieve.core.method import Batch, Batches, Load, Method, Metrics, Round, register
from fedsieve.core.options import in_range, option
from fedsieve.methods.flops import GatedWeights
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, DualAscent, Optimiser
from fedsieve.optim.schedules import ramp_in_run
from fedsieve.sparsity import masks
from fedsieve.sparsity.units import level, regrown

PAPER = {
    "target_density": 0.05,
    "units": "weights(biases=True)",
    "ramp": 0,
    "open_logit": None,
    "lr": 1.5,
    "schedule": "constant",
}


class Sparse(NamedTuple):
    """The m largest effective weights, their gates, and the mean of the other gates."""

    mask: Mask
    effective: Params
    gates: Params
    rest: float

    @property
    def all_gates(self) -> Params:
        """Gates that were not sent are the mean given for them; those of channels are sent as 0."""
        sent, rest = self.mask, self.rest
        return {n: torch.where(sent.get(n, g > 0), g, rest) for n, g in self.gates.items()}


class Server(NamedTuple):
    model: Sparse
    kept: int
    spent: float  # bytes of one client, both ways, over all rounds
    rounds: int


class Down(NamedTuple):
    mask: Bits
    effective: Annotated[Params, Kept(where="mask")]
    gates: Annotated[Params, Kept(where="mask")]
    rest: Scalar
    kept: Count
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    effective: Annotated[Params, Kept(where="mask")]
    gates: Annotated[Params, Kept(where="mask")]
    rest: Scalar
    examples: Examples


class Point(NamedTuple):
    """Where the Lagrangian is evaluated; `dual` has one entry, of the constraint on "density"."""

    weights: Params
    gate_logits: Params
    dual: Params


@register("flops_pa")
@dataclass(frozen=True, kw_only=True)
class FlopsPA(GatedWeights, Method[Server, tuple[()], Down, Up]):
    """Gated weights by averaging parameters; m weights and their gates travel both ways."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    target_density: float = option(0.25, "rho: share of gated weights kept")
    target_bytes: int | None = option(
        None, "of a client's two messages, a round; replaces target_density"
    )
    inverse: Literal["stretched", "plain"] = option(
        "stretched", "gates to logits; the paper: plain"
    )
    open_logit: float | None = option(
        6.0, "of a gate that is 1; none: that of the inverse, P(z = 1) = 1/2"
    )
    optimiser: Optimiser = option(SGD(), "of weights; fresh in every round")
    weighting: Literal["samples", "uniform"] = option("samples", "p_k: by examples or equally")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_bytes is not None:
            in_range("target_bytes", self.target_bytes, 1)
            if not self.units.come_back:
                raise ConfigError("target_bytes: channels stay as chosen first. Use units=weights.")

    def in_run(self, rounds: int) -> Self:
        return replace(super().in_run(rounds), ramp=ramp_in_run(self.ramp, rounds))

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        logits, graph = self.init_logits(key), self.task.graph
        # Either way a weight takes about 9 bytes: two values, and what says where they belong.
        kept = self.budget(0)
        if self.target_bytes is not None:
            kept = self._fitting(self.target_bytes / 18)
        kept = kept if self.units.come_back else self.units.size(graph)
        chosen = self.largest(level(graph, weights), logits, kept)
        grown = regrown(graph, weights, self.cut(weights, self.test_gates(logits), chosen))
        return Server(self._compress(grown, logits, chosen), kept, 0.0, 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(*server.model, server.kept, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        target = down.kept / self.units.size(self.task.graph)

        def lagrangian(at: Point, batch: Batch, key: Key) -> Tensor:
            gap = self.density(at.gate_logits) - target
            return self.loss(at.weights, at.gate_logits, batch, key) + at.dual["density"] * gap

        weights, gate_logits = self._expand(down.effective, Sparse(*down[:4]).all_gates)
        factor = self.schedule.factor(down.rounds)
        trained = local.train(
            lagrangian,
            Point(weights, gate_logits, {"density": torch.zeros(())}),
            data.work(key),
            (self.optimiser, SGD(), DualAscent()),
            clip_norm=(self.clip_norm, None, None),
            lr=(self.lr * factor, self.gate_lr * factor, self.dual_lr),
            key=key,
            fixed=self.task.buffers,
            project=lambda at: at._replace(gate_logits=self.clamp(at.gate_logits)),
        )
        weights, gate_logits, _ = trained.params
        model = self._scale_and_compress(weights, gate_logits, down.kept)
        figures = {"train_loss": trained.loss, "gates_outside": model.rest}
        values = figures | {"expected_density": self.density(gate_logits).item()}
        return Up(*model, data.examples), state, Metrics(trained.processed, values)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        pairs = [(r, r.examples if self.weighting == "samples" else 1) for r in round.replies]
        effective = tree.weighted_mean((r.effective, share) for r, share in pairs)
        gates = tree.weighted_mean((Sparse(*r[:4]).all_gates, share) for r, share in pairs)
        kept, spent = self._next_kept(server, round.load)
        model = self._scale_and_compress(*self._expand(effective, gates), kept)
        return Server(model, kept, spent, server.rounds + 1)

    def model(self, server: Server, state: tuple[()]) -> Params:
        return server.model.effective

    def _next_kept(self, server: Server, load: Load) -> tuple[int, float]:
        """The next m, and the bytes spent: over all rounds their mean meets `target_bytes`."""
        done = server.rounds + 1
        if self.target_bytes is None:
            return self.budget(done), server.spent
        cost = (load.up_bytes + load.down_bytes) / load.clients
        spent = server.spent + cost
        saved = self.target_bytes * done - spent
        wanted = self.target_bytes + saved / 4  # debts are paid back over about four rounds
        factor = min(max(wanted / cost, 0.5), 2.0)
        return self._fitting(server.kept * factor), spent

    def _fitting(self, kept: float) -> int:
        return min(max(round(kept), 1), self.units.size(self.task.graph))

    def _scale_and_compress(self, weights: Params, gate_logits: Params, kept: int) -> Sparse:
        scaled = self.scale(gate_logits, self.largest(weights, gate_logits, kept))
        return self._compress(weights, scaled, self.largest(weights, scaled, kept))

    def _compress(self, weights: Params, gate_logits: Params, chosen: Mask) -> Sparse:
        gates = self.test_gates(gate_logits)
        outside = torch.cat([g[~chosen[n]] for n, g in gates.items()])
        rest = outside.mean().item() if len(outside) else 0.0
        mask, left = self.units.cover(self.task.graph, chosen), self.cut(weights, gates, chosen)
        return Sparse(mask, left, masks.apply(gates, chosen), rest)

    def _expand(self, effective: Params, gates: Params) -> tuple[Params, Params]:
        """Weights and gate logits of which these are the products and the medians.

        Algorithm 2 prints a product; with theta = w z only the quotient gives w back.
        """
        inverse = {n: torch.where(g > 0, 1 / g, 0) for n, g in gates.items()}
        return self.effective(effective, inverse), self._invert(gates)

    def _invert(self, gates: Params) -> Params:
        beta = self.gate.beta
        if self.inverse == "plain":
            return {n: beta * torch.logit(g.clamp(0.01, 0.99)) for n, g in gates.items()}
        factor = 1 if self.test_gate == "median" else 1 / beta
        logits = {n: self.gate.invert(g) * factor for n, g in gates.items()}
        if self.open_logit is None:
            return logits
        return {n: torch.where(g >= 1, self.open_logit, logits[n]) for n, g in gates.items()}


@register("flops_pa_central")
@dataclass(frozen=True, kw_only=True)
class FlopsPACentral(FlopsPA):
    """FLoPS-PA with one client that holds all data: the central baseline (section 6).

    Its messages are encoded and counted like any other's.
    """

    partition = "pooled"
