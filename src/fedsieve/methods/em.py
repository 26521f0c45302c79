"""Hard EM: the client loop and the round of a family of methods, which differ in their prior.

Paper    "Federated averaging as expectation-maximization", 2020 (specification fedsparse,
         section 1).
Symbols  W -> centre   phi_s -> local parameters   p(phi given W) -> prior
Differs  statistics of normalisation layers (task.buffers) carry no prior: they travel with the
         weights and are averaged by every method.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Count, Dense, Examples, Mask, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Round, Task
from fedsieve.core.options import in_range
from fedsieve.inference.priors import PointPrior, Prior
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule

PAPER = {"lr": 0.1, "clip_norm": None, "schedule": "constant"}


class _Numbered(Protocol):
    @property
    def rounds(self) -> int: ...


class _Counted(Protocol):
    @property
    def weights(self) -> Params: ...
    @property
    def examples(self) -> int: ...


ServerT = TypeVar("ServerT")
StateT = TypeVar("StateT")
DownT = TypeVar("DownT", bound=_Numbered)
UpT = TypeVar("UpT", bound=_Counted)
LocalT = TypeVar("LocalT")
CentreT = TypeVar("CentreT")


class Own(NamedTuple):
    """A client's last local model, for its evaluation alone; empty before it has one."""

    weights: Params


Memory: TypeAlias = Own | tuple[()]


class Begun(NamedTuple, Generic[LocalT, CentreT]):
    """An E-step about to run: where it starts, what the prior is centred at, and how it moves."""

    start: LocalT
    centre: CentreT
    optimisers: Optimiser | Sequence[Optimiser]
    rates: float | Sequence[float]
    mask: Mask | None = None  # of weights that are 0 throughout


@dataclass(frozen=True, kw_only=True)
class HardEM(
    Method[ServerT, StateT, DownT, UpT], Generic[ServerT, StateT, DownT, UpT, LocalT, CentreT]
):
    """Local MAP estimates under a prior around the server's parameters, then the M-step."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    lr: float = 1.0  # client learning rate
    clip_norm: float | None = 1.0  # largest norm of a gradient of weights; the papers: none
    schedule: Schedule = Cosine(floor=0.02)  # of the client learning rate, over rounds
    optimiser: Optimiser = SGD()  # of the client; fresh in every round
    weighting: Literal["samples", "uniform"] = "samples"  # clients count by examples or equally
    personal: bool = False  # clients keep their last local model, and local accuracy is that one's

    def __post_init__(self) -> None:
        in_range("lr", self.lr, 0, above=True)
        if self.clip_norm is not None:
            in_range("clip_norm", self.clip_norm, 0, above=True)

    @property
    @abstractmethod
    def prior(self) -> Prior[LocalT, CentreT]:
        """p(phi | W)."""

    @abstractmethod
    def begin(self, down: DownT, data: Batches) -> Begun[LocalT, CentreT]:
        """The E-step of a client that has received `down`."""

    @abstractmethod
    def finish(
        self, begun: Begun[LocalT, CentreT], found: LocalT, data: Batches, key: Key
    ) -> tuple[UpT, StateT]:
        """What a client sends and keeps of the local parameters it has found."""

    @abstractmethod
    def m_step(self, server: ServerT, replies: Sequence[UpT], shares: Sequence[float]) -> ServerT:
        """The next server state; shares add up to 1."""

    def client_update(
        self, down: DownT, state: StateT, data: Batches, key: Key
    ) -> tuple[UpT, StateT, Metrics]:
        prior, begun = self.prior, self.begin(down, data)

        def objective(found: LocalT, batch: Batch, key: Key) -> Tensor:
            loss = self.task.loss(prior.effective(found, key), batch, key)
            penalty = prior.penalty(found, begun.centre)
            return loss if penalty is None else loss + penalty

        trained = local.train(
            objective,
            begun.start,
            data.work(key),
            begun.optimisers,
            lr=begun.rates,
            key=key,
            fixed=self.task.buffers,
            clip_norm=self._clips(begun),
        )
        up, after = self.finish(begun, trained.params, data, key)
        return up, after, Metrics(trained.processed, {"train_loss": trained.loss}, begun.mask)

    def server_update(self, server: ServerT, round: Round[DownT, UpT], key: Key) -> ServerT:
        counts = [r.examples if self.weighting == "samples" else 1 for r in round.replies]
        return self.m_step(server, round.replies, [count / sum(counts) for count in counts])

    def _clips(self, begun: Begun[LocalT, CentreT]) -> Sequence[float | None] | float | None:
        if isinstance(begun.optimisers, Sequence):
            return [self.clip_norm, *[None] * (len(begun.optimisers) - 1)]
        return self.clip_norm

    def remember(self, weights: Params) -> Memory:
        """What a client keeps for its evaluation."""
        return Own(weights) if self.personal else ()

    def rate(self, down: DownT) -> float:
        """The client's learning rate in this round."""
        return self.lr * self.schedule.factor(down.rounds)

    def trainable(self, weights: Params) -> Params:
        """The weights without statistics."""
        return {n: v for n, v in weights.items() if n not in self.task.buffers}

    def statistics(self, replies: Sequence[UpT], shares: Sequence[float]) -> Params:
        """Mean statistics of normalisation layers."""
        return tree.weighted_mean(
            ({n: r.weights[n] for n in sorted(self.task.buffers)}, share)
            for r, share in zip(replies, shares, strict=True)
        )


class Server(NamedTuple):
    weights: Params
    moments: Moments  # of the server's optimiser; empty in closed form
    rounds: int


class Down(NamedTuple):
    weights: Dense
    rounds: Count


class Up(NamedTuple):
    weights: Dense
    examples: Examples


@dataclass(frozen=True, kw_only=True)
class PointEM(HardEM[Server, Memory, Down, Up, Params, Params]):
    """A prior around one centre: FedAvg, FedProx, FedOpt and FedMedian."""

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

    def begin(self, down: Down, data: Batches) -> Begun[Params, Params]:
        return Begun(down.weights, self.trainable(down.weights), self.optimiser, self.rate(down))

    def finish(
        self, begun: Begun[Params, Params], found: Params, data: Batches, key: Key
    ) -> tuple[Up, Memory]:
        return Up(found, data.examples), self.remember(found)

    def m_step(self, server: Server, replies: Sequence[Up], shares: Sequence[float]) -> Server:
        locals_ = [self.trainable(r.weights) for r in replies]
        weights, moments = self.move(server, locals_, shares)
        return Server(weights | self.statistics(replies, shares), moments, server.rounds + 1)

    def move(
        self, server: Server, locals_: Sequence[Params], shares: Sequence[float]
    ) -> tuple[Params, Moments]:
        """Weights and moments after the M-step; here the closed form."""
        return self.prior.m_step(locals_, shares), server.moments

    def model(self, server: Server, state: Memory) -> Params | None:
        return (state.weights or None) if isinstance(state, Own) else server.weights
