"""Training without exchange, each client for itself or on all data: the lower and upper anchor.

Paper    none; what personal methods on skewed data have to beat, and what federated training could
         reach if data could be gathered.
Symbols  w_k -> state.weights
Differs  all clients start from one common initial model, and the central one is evaluated on the
         same test shards, as in every other method.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Params
from fedsieve.core.method import Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.methods.fedavg import PAPER
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule


class Nothing(NamedTuple):
    """A message without fields: no bytes."""


class State(NamedTuple):
    weights: Params
    moments: tuple[Moments, ...]
    rounds: int  # in which this client took part


@register("local_only")
@dataclass(frozen=True, kw_only=True)
class LocalOnly(Method[Nothing, State, Nothing, Nothing]):
    """Every client trains a model of its own and nothing is sent: the lower anchor."""

    task: Task
    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    lr: float = option(1.0, "learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient")
    schedule: Schedule = option(
        Cosine(floor=0.02), "of the learning rate, over the client's own rounds"
    )
    optimiser: Optimiser = option(SGD(), "its moments live on over rounds")

    def __post_init__(self) -> None:
        in_range("lr", self.lr, 0, above=True)
        if self.clip_norm is not None:
            in_range("clip_norm", self.clip_norm, 0, above=True)

    def init_server(self, key: Key) -> Nothing:
        return Nothing()

    def init_client(self, client: int, key: Key) -> State:
        return State(self.task.init_params(fold(key, "weights")), (), 0)

    def broadcast(self, server: Nothing, key: Key) -> Nothing:
        return Nothing()

    def client_update(
        self, down: Nothing, state: State, data: Batches, key: Key
    ) -> tuple[Nothing, State, Metrics]:
        trained = local.train(
            self.task.loss,
            state.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(state.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
            moments=state.moments,
        )
        after = State(trained.params, trained.moments, state.rounds + 1)
        return Nothing(), after, Metrics(trained.processed, {"train_loss": trained.loss})

    def server_update(self, server: Nothing, round: Round[Nothing, Nothing], key: Key) -> Nothing:
        return server

    def model(self, server: Nothing, state: State | tuple[()]) -> Params | None:
        return state.weights if isinstance(state, State) else None


@register("central")
@dataclass(frozen=True, kw_only=True)
class Central(LocalOnly):
    """One model on the union of all shards: the upper anchor."""

    partition = "pooled"
