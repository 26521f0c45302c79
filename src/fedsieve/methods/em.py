"""Hard EM: what methods share whose clients train under a prior around the server's parameters.

Paper    "Federated averaging as expectation-maximization", 2020 (specification fedsparse,
         section 1).
Symbols  W -> centre   phi_s -> local parameters   p(phi given W) -> prior
Differs  statistics of normalisation layers (task.buffers) carry no prior: they travel with the
         weights and are averaged by every method.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Round, Task
from fedsieve.core.options import in_range, option
from fedsieve.inference.priors import PointPrior, Prior
from fedsieve.methods.fedavg import PAPER, Down, Memory, Own, Up
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule

Local = TypeVar("Local")
Centre = TypeVar("Centre")


class Counted(Protocol):
    """A reply with a model and the number of examples behind it."""

    @property
    def weights(self) -> Params: ...
    @property
    def examples(self) -> int: ...


def objective(
    task: Task, prior: Prior[Local, Centre], centre: Centre
) -> Callable[[Local, Batch, Key], Tensor]:
    """What the E-step descends: the mean loss and -log p(phi | W)."""

    def value(params: Local, batch: Batch, key: Key) -> Tensor:
        loss = task.loss(prior.effective(params, key), batch, key)
        penalty = prior.penalty(params, centre)
        return loss if penalty is None else loss + penalty

    return value


@dataclass(frozen=True, kw_only=True)
class HardEM:
    """Options of the E-step, and how clients count in the M-step."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient of weights; the papers: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )
    personal: bool = option(
        False, "clients keep their last local model, and local accuracy is that one's"
    )

    def __post_init__(self) -> None:
        in_range("lr", self.lr, 0, above=True)
        if self.clip_norm is not None:
            in_range("clip_norm", self.clip_norm, 0, above=True)

    def rate(self, rounds: int) -> float:
        """The client's learning rate after so many rounds."""
        return self.lr * self.schedule.factor(rounds)

    def e_step(
        self,
        prior: Prior[Params, Centre],
        centre: Centre,
        start: Params,
        rounds: int,
        data: Batches,
        key: Key,
    ) -> local.Trained[Params]:
        """Local training from `start` under a prior around the centre."""
        return local.train(
            objective(self.task, prior, centre),
            start,
            data.work(key),
            self.optimiser,
            lr=self.rate(rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
        )

    def remember(self, weights: Params) -> Memory:
        """What a client keeps for its evaluation."""
        return Own(weights) if self.personal else ()

    def shares(self, replies: Sequence[Counted]) -> list[float]:
        """How much each reply counts; shares add up to 1."""
        counts = [r.examples if self.weighting == "samples" else 1 for r in replies]
        return [count / sum(counts) for count in counts]

    def trainable(self, weights: Params) -> Params:
        """The weights without statistics."""
        return {n: v for n, v in weights.items() if n not in self.task.buffers}

    def statistics(self, replies: Sequence[Counted], shares: Sequence[float]) -> Params:
        """Mean statistics of normalisation layers."""
        return tree.weighted_mean(
            ({n: r.weights[n] for n in sorted(self.task.buffers)}, share)
            for r, share in zip(replies, shares, strict=True)
        )


class Server(NamedTuple):
    weights: Params
    moments: Moments  # of the server's optimiser; empty in closed form
    rounds: int


@dataclass(frozen=True, kw_only=True)
class PointEM(HardEM, Method[Server, Memory, Down, Up]):
    """A prior around one centre: FedProx, FedOpt and FedMedian."""

    @property
    @abstractmethod
    def prior(self) -> PointPrior:
        """p(phi | W)."""

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), {}, 0)

    def init_client(self, client: int, key: Key) -> Memory:
        return self.remember({})

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.weights, server.rounds)

    def client_update(
        self, down: Down, state: Memory, data: Batches, key: Key
    ) -> tuple[Up, Memory, Metrics]:
        centre = self.trainable(down.weights)
        trained = self.e_step(self.prior, centre, down.weights, down.rounds, data, key)
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(trained.params, data.examples), self.remember(trained.params), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        shares = self.shares(round.replies)
        locals_ = [self.trainable(r.weights) for r in round.replies]
        weights, moments = self.m_step(server, locals_, shares)
        weights |= self.statistics(round.replies, shares)
        return Server(weights, moments, server.rounds + 1)

    def m_step(
        self, server: Server, locals_: Sequence[Params], shares: Sequence[float]
    ) -> tuple[Params, Moments]:
        """Weights and moments after the M-step; here in closed form."""
        return self.prior.m_step(locals_, shares), server.moments

    def model(self, server: Server, state: Memory) -> Params | None:
        return (state.weights or None) if isinstance(state, Own) else server.weights
