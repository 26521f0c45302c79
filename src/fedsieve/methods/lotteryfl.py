"""LotteryFL: clients prune masks of their own and start what is left from where it began.

Paper    Li et al., "LotteryFL: Personalized and Communication-Efficient Federated Learning with
         Lottery Ticket Hypothesis on Non-IID Datasets", 2020 (specification rivals, section 5).
Symbols  theta -> server.weights   theta_0 -> start   m_k -> server.masks   p -> prune_share
         r_target -> target_density   acc_threshold -> gate
Differs  the gate asks validation data, where the published program asks test data, and by default
         asks for a share of what the client had after training, not for a fixed accuracy. The last
         step stops at the target (`overshoot`), normalisation is never masked (`mask_norms`).
         A client prunes by half at once and in the first half of the run: whoever starts anew later
         has no rounds left to train in. theta_0 follows from the key, which clients have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params, Sender
from fedsieve.core.method import Batch, Batches, Method, Metrics, PerClient, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import layers, masks

PAPER = {
    "prune_share": 0.2,
    "gate_on": "accuracy",
    "gate": 0.2,
    "prune_until": 0,
    "lr": 0.005,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
    "weighting": "uniform",
}
CODE = PAPER | {
    "prune_share": 0.1,
    "overshoot": True,
    "mask_norms": True,
    "lr": 0.01,
    "optimiser": "sgd(momentum=0.5)",
}


class Server(NamedTuple):
    weights: Params
    masks: dict[str, Mask]  # by client; whoever has none holds all
    rounds: int


class State(NamedTuple):
    client: int
    key: int  # from which theta_0 follows
    score: float  # on validation data, after the last local training; 0 before


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    client: Sender
    examples: Examples


@register("lotteryfl")
@dataclass(frozen=True, kw_only=True)
class LotteryFL(Method[Server, State, Down, Up]):
    """Personal lottery tickets: own masks, and weights averaged over those who hold them."""

    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"code": CODE, "paper": PAPER}
    task: Task
    target_density: float = option(0.5, "share of weights below which a client does not prune")
    prune_share: float = option(
        0.5, "p: share of a layer's kept weights that a pruning cuts; paper: 0.2"
    )
    overshoot: bool = option(False, "the last pruning is as large as the others, and passes target")
    gate_on: Literal["trained", "accuracy"] = option(
        "trained", "a client prunes above `gate` of its score after training, or of 1"
    )
    gate: float = option(0.5, "score of the masked global model on validation data, see gate_on")
    held_back: float = option(0.1, "share of a client's training data that is held back for it")
    prune_until: int | None = option(
        None, "rounds in which clients prune; none: half of the run; 0, as in the paper: all"
    )
    reset: bool = option(True, "what is left after a pruning starts from its initial values")
    mask_norms: bool = option(False, "scales of normalisation are masked, too, as in the program")
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("lotteryfl: target_density", self.target_density, 0, 1, above=True)
        in_range("lotteryfl: prune_share", self.prune_share, 0, 1, above=True, below=True)
        in_range("lotteryfl: gate", self.gate, 0, 1)
        in_range("lotteryfl: held_back", self.held_back, 0, 1, above=True, below=True)
        in_range("lotteryfl: prune_until", self.prune_until or 0, 0)
        in_range("lotteryfl: lr", self.lr, 0, above=True)
        in_range("clip_norm", 1 if self.clip_norm is None else self.clip_norm, 0, above=True)

    def in_run(self, rounds: int) -> Self:
        until = (rounds + 1) // 2 if self.prune_until is None else self.prune_until
        return replace(super().in_run(rounds), prune_until=until)

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), {}, 0)

    def init_client(self, client: int, key: Key) -> State:
        return State(client, key - 2**64 if key >= 2**63 else key, 0.0)  # of 64 bits with a sign

    def broadcast(self, server: Server, key: Key) -> PerClient[Down]:
        whole = Down(self._whole(server.weights), server.weights, server.rounds)
        own = {c: whole._replace(mask=mask) for c, mask in server.masks.items()}
        return PerClient(lambda client: own.get(str(client), whole))

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        may_prune = self._may_prune(down)
        training, held = data.split(self.held_back) if may_prune else (data, data)
        mask, first = down.mask, masks.apply(down.weights, down.mask)
        is_pruned = may_prune and self._passes(local.score(self.task, first, held), state.score)
        if is_pruned:
            mask = self._smaller(down)
            first = masks.apply(self._restarted(first, state), mask)

        def loss(weights: Params, batch: Batch, key: Key) -> Tensor:
            return self.task.loss(masks.apply(weights, mask), batch, key)

        trained = local.train(
            loss,
            first,
            training.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
        )
        up = Up(mask, trained.params, state.client, data.examples)
        if may_prune:
            score = local.score(self.task, trained.params, held)
            state = state._replace(score=score if isfinite(score) else 0.0)
        values = {"train_loss": trained.loss, "pruned": float(is_pruned)}
        return up, state, Metrics(trained.processed, values, mask)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        parts = [
            layers.Part(r.weights, r.mask, r.examples if self.weighting == "samples" else 1)
            for r in round.replies
        ]
        held = server.masks | {str(r.client): r.mask for r in round.replies}
        return Server(layers.overlap_mean(parts, server.weights), held, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        if not isinstance(state, State):
            return None
        return masks.apply(server.weights, server.masks.get(str(state.client), {}))

    def _may_prune(self, down: Down) -> bool:
        """Whether a client keeps more than the target, some of it may be cut, and it is time."""
        is_time = not self.prune_until or down.rounds < self.prune_until
        if not is_time or masks.density(down.mask) <= self.target_density:
            return False
        return layers.sizes(self._smaller(down)) != layers.sizes(down.mask)

    def _smaller(self, down: Down) -> Mask:
        least = 0.0 if self.overshoot else self.target_density
        return layers.pruned(down.weights, down.mask, self.prune_share, least)

    def _passes(self, score: float, after_training: float) -> bool:
        if self.gate_on == "accuracy":
            return score > self.gate
        return after_training > 0 and score >= self.gate * after_training

    def _restarted(self, weights: Params, state: State) -> Params:
        """Parameters of theta_0, beside the present statistics of normalisation."""
        if not self.reset:
            return weights
        start = self.task.init_params(fold(state.key, "weights"))
        return {n: weights[n] if n in self.task.buffers else start[n] for n in weights}

    def _whole(self, weights: Params) -> Mask:
        """The mask of a client that has not pruned."""
        graph, norms = self.task.graph, set[str]()
        if self.mask_norms:
            norms = {n for x in graph.norms for n in x.tensors if n.endswith(".weight")}
        names = {*graph.maskable, *norms}
        return {n: torch.ones_like(w, dtype=torch.bool) for n, w in weights.items() if n in names}
