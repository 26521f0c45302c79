"""FedPM: weights are random and never move; clients vote, a bit each, on which of them to keep.

Paper    Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning",
         ICLR 2023, Algorithms 1 and 2 (specification rivals, section 8).
Symbols  w_init -> _frozen(server.seed)   theta -> server.theta   s -> Local.scores   m_k -> up.mask
         alpha - 1 -> server.kept   alpha + beta - 2 -> server.votes   1 / rho -> reset_every
Differs  clients train expected weights theta w_init and draw masks for their votes alone, where
         the paper draws a mask for every step (`training="sample"`); earlier votes fade by a share
         that falls over the run, where the paper forgets all of them every `reset_every` rounds
         (`forget=1`, constant); the expected weights are deployed. Presets `paper` and `code` have
         it their way. Normalisation and embeddings, which its networks lack, train as in FedAvg.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log, log2, prod, sqrt
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedsieve.core import keys, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bit, Count, Dense, Drawn, Mask, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Report, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Adam, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule

PAPER = {
    "lr": 0.1,
    "optimiser": "adam",
    "schedule": "constant",
    "gain": sqrt(2),
    "training": "sample",
    "forget": 1.0,
    "forget_schedule": "constant",
    "deployed": "sample",
}
CODE = {**PAPER, "gain": 2.718281828, "slope": "p", "posterior": "smoothed", "keep_moments": True}
FEW_ROUNDS = 100  # in which masks drawn for every step have not settled


class Server(NamedTuple):
    theta: Params
    kept: Params  # votes to keep a weight, those that are not forgotten
    votes: float  # of how many in all
    unmasked: Params
    seed: int  # of the frozen weights
    rounds: int


class State(NamedTuple):
    moments: tuple[Moments, ...]


class Down(NamedTuple):
    theta: Dense
    unmasked: Dense
    seed: Count
    rounds: Count


class Up(NamedTuple):
    mask: Annotated[Mask, Bit(given="theta")]  # coded by theta, which both ends know
    odds: Annotated[Params, Drawn(given="theta")]  # votes="drawn": in its place, arrives as a mask
    unmasked: Dense


class Local(NamedTuple):
    """What a client trains: logits of theta, and the tensors that have no mask."""

    scores: Params
    unmasked: Params


class Frozen(NamedTuple):
    """A tensor of frozen weights: its shape, and the fan-in of its layer."""

    shape: tuple[int, ...]
    fan_in: int


@register("fedpm")
@dataclass(frozen=True, kw_only=True)
class FedPM(Method[Server, State, Down, Up]):
    """Probabilities of masks over frozen random weights; one bit a weight goes up."""

    takes_start = False  # weights follow from a seed that clients are told
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER, "code": CODE}
    task: Task
    lr: float = option(0.2, "client learning rate of scores; the papers: 0.1")
    schedule: Schedule = option(Cosine(floor=0.2), "of client learning rates, over rounds")
    optimiser: Optimiser = option(Adam(beta2=0.99), "of scores; fresh unless moments are kept")
    keep_moments: bool = option(False, "clients go on with the moments of their last round")
    weights: Literal["signed", "uniform", "normal"] = option("signed", "law of frozen weights")
    gain: float = option(2.0, "their standard deviation times the root of the fan-in")
    biases: Literal["masked", "trained"] = option("masked", "frozen under a mask, or as in fedavg")
    norms: Literal["trained", "frozen"] = option("trained", "tensors without a mask")
    norm_lr: float = option(1.0, "client learning rate of tensors without a mask (SGD)")
    training: Literal["mean", "sample"] = option("mean", "on expected weights or under drawn masks")
    slope: Literal["one", "p"] = option("one", "of a drawn bit by its probability p")
    posterior: Literal["beta", "smoothed"] = option(
        "beta", "theta: its mode, or a mean of bits lifted to floor and 1 - floor"
    )
    votes: Literal["coded", "drawn"] = option(
        "coded", "a mask's bits, or which of the masks that both ends draw from theta"
    )
    forget: float = option(0.7, "share of earlier votes that is forgotten; the papers: 1")
    forget_schedule: Schedule = option(Cosine(floor=0.02), "of that share, over rounds")
    reset_every: int = option(1, "rounds from one forgetting to the next")
    floor: float = option(0.01, "theta stays between this and 1 - this")
    deployed: Literal["mean", "threshold", "sample"] = option(
        "mean", "the model: theta w, or w where theta > 1/2, or under a drawn mask"
    )

    def __post_init__(self) -> None:
        for name in ("lr", "norm_lr", "gain"):
            in_range(f"fedpm: {name}", getattr(self, name), 0, above=True)
        in_range("fedpm: forget", self.forget, 0, 1)
        in_range("fedpm: reset_every", self.reset_every, 1)
        in_range("fedpm: floor", self.floor, 0, 0.5, above=True, below=True)

    def in_run(self, rounds: int) -> Self:
        if self.training == "sample" and rounds < FEW_ROUNDS:
            warnings.warn(
                f"fedpm: masks drawn for every step have not settled after {rounds} rounds: "
                f"expect low accuracy. Ask for {FEW_ROUNDS} rounds or more, or training=mean.",
                stacklevel=2,
            )
        return super().in_run(rounds)

    def init_server(self, key: Key) -> Server:
        theta = {
            n: torch.sigmoid(keys.normal(fold(key, "scores", n), tensor.shape))
            for n, tensor in self._masked.items()
        }
        start = self.task.init_params(fold(key, "weights"))
        return Server(
            self._within(theta),
            {n: torch.zeros_like(t) for n, t in theta.items()},
            0.0,
            {n: value for n, value in start.items() if n not in theta},
            keys.torch_seed(fold(key, "frozen")),
            0,
        )

    def init_client(self, client: int, key: Key) -> State:
        return State(())

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.theta, server.unmasked, server.seed, server.rounds)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        frozen, factor = self._frozen(down.seed), self.schedule.factor(down.rounds)
        start = self._within(down.theta)  # the wire may have rounded it

        def loss(at: Local, batch: Batch, key: Key) -> Tensor:
            gates = {n: self._gate(s, fold(key, "mask", n)) for n, s in at.scores.items()}
            return self.task.loss(_gated(frozen, gates) | at.unmasked, batch, key)

        trained = local.train(
            loss,
            Local(_logits(start), down.unmasked),
            data.work(key),
            (self.optimiser, SGD() if self.norms == "trained" else None),
            lr=(self.lr * factor, self.norm_lr * factor),
            key=key,
            fixed=self.task.buffers,
            moments=state.moments,
            clip_norm=(None, 1.0),
        )
        theta = {n: torch.sigmoid(s) for n, s in trained.params.scores.items()}
        is_coded = self.votes == "coded"
        mask = _drawn(theta, fold(key, "vote")) if is_coded else {}
        up = Up(mask, {} if is_coded else theta, trained.params.unmasked)
        after = State(trained.moments if self.keep_moments else ())
        values = {"train_loss": trained.loss, "divergence": _divergence(theta, start)}
        return up, after, Metrics(trained.processed, values)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies, is_due = round.replies, server.rounds % self.reset_every == 0
        masks = [reply.mask or reply.odds for reply in replies]
        forgotten = self.forget * self.forget_schedule.factor(server.rounds) if is_due else 0.0
        votes = (1 - forgotten) * server.votes + len(replies)
        kept = {
            n: (1 - forgotten) * old + torch.stack([mask[n] for mask in masks]).sum(0)
            for n, old in server.kept.items()
        }
        theta = {n: k / votes for n, k in kept.items()}
        if self.posterior == "smoothed":
            theta = {n: self.floor + (1 - 2 * self.floor) * t for n, t in theta.items()}
        unmasked = tree.weighted_mean((r.unmasked, 1) for r in replies)
        rounds = server.rounds + 1
        return Server(self._within(theta), kept, votes, unmasked, server.seed, rounds)

    def model(self, server: Server, state: State | tuple[()]) -> Params:
        gates: Mapping[str, Tensor] = server.theta
        if self.deployed == "threshold":
            gates = {n: t > 0.5 for n, t in server.theta.items()}
        elif self.deployed == "sample":
            gates = _drawn(server.theta, fold(server.seed, "deployed", server.rounds))
        return _gated(self._frozen(server.seed), gates) | server.unmasked

    def report(self, server: Server) -> Report:
        gates = {n: server.theta[n] for n in self.task.graph.maskable}
        open_share = sum(t.sum().item() for t in gates.values()) / self.task.graph.maskable_size
        return Report({"mean_theta": open_share}, gates)

    def paper_bytes(self, message: Down | Up) -> int:
        """The paper's d H(share of ones) + log2 d bits for a mask, and 4 bytes a value."""
        if isinstance(message, Down):
            return super().paper_bytes(message)
        votes = (message.mask or message.odds).values()
        size, ones = sum(v.numel() for v in votes), sum(v.sum().item() for v in votes)
        entropy = sum(n * log2(size / n) for n in (ones, size - ones) if n)
        return super().paper_bytes(message) + ceil((entropy + log2(size)) / 8)

    @cached_property
    def _masked(self) -> dict[str, Frozen]:
        """The tensors under a mask: weights of layers, and their biases if these are masked."""
        tensors = {}
        for layer in self.task.graph.layers:
            if layer.weight in self.task.graph.maskable:
                fan_in = prod(layer.shape[1:])
                tensors[layer.weight] = Frozen(layer.shape, fan_in)
                if layer.bias is not None and self.biases == "masked":
                    tensors[layer.bias] = Frozen(layer.shape[:1], fan_in)
        return tensors

    def _frozen(self, seed: int) -> Params:
        """The weights, which both ends draw from the seed."""
        return {
            name: self.gain / sqrt(tensor.fan_in) * self._standard(fold(seed, name), tensor.shape)
            for name, tensor in self._masked.items()
        }

    def _standard(self, key: Key, shape: tuple[int, ...]) -> Tensor:
        """Draws of mean 0 and variance 1."""
        if self.weights == "normal":
            return keys.normal(key, shape)
        centred = 2 * keys.uniform(key, shape) - 1
        return sqrt(3) * centred if self.weights == "uniform" else torch.where(centred < 0, -1.0, 1)

    def _gate(self, score: Tensor, key: Key) -> Tensor:
        """What a frozen weight is multiplied with in training."""
        p = torch.sigmoid(score)
        if self.training == "mean":
            return p
        fixed = p.detach()
        slope = fixed if self.slope == "p" else 1.0
        return (keys.uniform(key, p.shape) < fixed) + slope * (p - fixed)

    def _within(self, theta: Params) -> Params:
        return {n: t.clamp(self.floor, 1 - self.floor) for n, t in theta.items()}


def _logits(theta: Params) -> Params:
    return {n: torch.logit(t) for n, t in theta.items()}


def _drawn(theta: Params, key: Key) -> dict[str, Tensor]:
    """A mask whose bits are set with probability theta."""
    return {n: keys.uniform(fold(key, n), t.shape) < t for n, t in theta.items()}


def _divergence(own: Params, theta: Params) -> float:
    """Of a client's probabilities from theta, in bits a weight: the least that its vote takes."""
    total = 0.0
    for name, q in own.items():
        p = theta[name]
        total += float((torch.xlogy(q, q / p) + torch.xlogy(1 - q, (1 - q) / (1 - p))).sum())
    return total / log(2) / sum(q.numel() for q in own.values())


def _gated(frozen: Params, gates: Mapping[str, Tensor]) -> Params:
    return {n: w * gates[n] for n, w in frozen.items()}
