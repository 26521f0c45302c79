"""The Method protocol: six pure functions over NamedTuples, and the registry of methods.

    init_server(key) -> Server                      init_client(client, key) -> State
    broadcast(server, key) -> Down                  (or PerClient: a message for each)
    client_update(down, state, data, key) -> (Up, State, Metrics)
    server_update(server, round, key) -> Server     model(server, state) -> Params | None

A method is a frozen dataclass of hyper-parameters with a field `task`; nothing lives in it between
rounds, so a checkpoint is (server, client states, round, seed). Keys given to `init_*`, `broadcast`
and `server_update` are shared by all clients; the key of `client_update` belongs to one client and
one round. `class X(Method[Server, State, Down, Up])` names the message classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)

from torch import Tensor

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.graph import LayerGraph
from fedsieve.core.keys import Key
from fedsieve.core.message import Mask, Params
from fedsieve.core.message import paper_bytes as message_paper_bytes


class Batch(NamedTuple):
    """Inputs and targets of one mini-batch."""

    x: Tensor
    y: Tensor


class Batches(Protocol):
    """One client's training data, cut into mini-batches as the job asks."""

    @property
    def examples(self) -> int:
        """How many examples the client holds (n_k)."""

    @property
    def epochs(self) -> int:
        """Passes over the data in one round of local work."""

    @property
    def steps(self) -> int:
        """Mini-batches in one round of local work."""

    def epoch(self, key: Key) -> Iterator[Batch]:
        """One pass in an order drawn from `key`."""

    def work(self, key: Key) -> Iterator[Batch]:
        """All mini-batches of one round: `epochs` passes, or the job's fixed number of steps."""

    def draw(self, key: Key) -> Batch:
        """One mini-batch drawn at random (with replacement when the client holds less)."""

    def ordered(self) -> Iterator[Batch]:
        """Every example once in stored order, in large batches, for evaluation."""

    def split(self, share: float) -> tuple["Batches", "Batches"]:
        """What a client trains on and a `share` of its training data held back for validation.

        The same examples every time, spread evenly over the stored order.
        """


class Task(Protocol):
    """A model with its loss, as pure functions of parameters."""

    @property
    def kind(self) -> Literal["classes", "binary", "labels", "values"]:
        """What is predicted: one class of several, yes or no, any labels, or real values."""

    @property
    def graph(self) -> LayerGraph:
        """Which tensors may be masked, what they connect, and what they cost."""

    @property
    def sums(self) -> int:
        """How many numbers a tally has."""

    @property
    def buffers(self) -> frozenset[str]:
        """Names in `Params` that are statistics of normalisation layers: never given a gradient."""

    def init_params(self, key: Key) -> Params:
        """Fresh parameters and buffers."""

    def loss(self, params: Params, batch: Batch, key: Key) -> Tensor:
        """Mean training loss; `key` addresses dropout. Updates buffers in `params` in place."""

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """Outputs (logits or values) in evaluation mode."""

    def probe(self, params: Params) -> Params:
        """What each linear and convolution layer reads, by its weight, for an example of zeros."""

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Sums from which `score` and the loss follow; tallies of disjoint sets add up."""

    def score(self, tally: Tensor) -> float:
        """The task's figure of merit: accuracy, micro-F1 or R2."""

    def mean_loss(self, tally: Tensor) -> float:
        """Mean loss over the examples in a tally."""


@dataclass(frozen=True)
class Metrics:
    """Metrics that a client reports beside its message; not part of the byte count.

    Attributes:
        processed: examples put through a training step, for the count of MACs.
        mask: the mask in use while training, if weights outside it were zero.
        values: named figures for the log, averaged over the cohort.
        dense_gradients: of the examples processed, how many had a gradient outside the mask too.
    """

    processed: int
    values: dict[str, float]
    mask: Mask | None = None
    dense_gradients: int = 0


class Cohort(NamedTuple):
    """Who takes part in a round.

    Attributes:
        size: how many clients; None: all.
        draw: which draw of so many; equal numbers give the same clients.
        reaches_all: the other clients are sent the broadcast as well, and `observe` it.
    """

    size: int | None
    draw: int
    reaches_all: bool = False


EVERYONE = Cohort(None, draw=0)


class Load(NamedTuple):
    """True bytes of all messages between the server and a round's cohort of `clients`."""

    clients: int
    up_bytes: int
    down_bytes: int


class Report(NamedTuple):
    """Figures and gates that the server reports after a round.

    Attributes:
        figures: named figures for the log, such as the width of a model that grows.
        gates: gates in [0, 1] whose pattern a report follows; empty: the support of the model.
    """

    figures: dict[str, float] = {}  # noqa: RUF012 - never changed
    gates: Params = {}  # noqa: RUF012 - the same


Server = TypeVar("Server")
State = TypeVar("State")
Down = TypeVar("Down")
Up = TypeVar("Up")


class PerClient(NamedTuple, Generic[Down]):
    """A broadcast of one message per client; an object that several get is encoded once."""

    message: Callable[[int], Down]


def message_to(client: int, broadcast: Down | PerClient[Down]) -> Down:
    """The message of a broadcast that `client` gets."""
    return broadcast.message(client) if isinstance(broadcast, PerClient) else broadcast


def _nothing_sent(client: int) -> Any:
    raise LookupError(f"this Round has no message to client {client}: give it `down`.")


class Round(NamedTuple, Generic[Down, Up]):
    """Replies of a cohort, what its clients were sent, and the bytes of both.

    Attributes:
        replies: of the cohort, sorted by client; never empty.
        down: what a client was sent, as it reads it: rounded where the wire rounds.
        load: what the messages of the round weighed.
    """

    replies: Sequence[Up]
    down: Callable[[int], Down] = _nothing_sent
    load: Load = Load(0, 0, 0)


class Method(ABC, Generic[Server, State, Down, Up]):
    """Base of all methods: the six functions, and defaults for what most methods leave alone."""

    task: Task
    personal: bool = False  # model(server, state) differs from client to client
    partition: ClassVar[Literal["given", "pooled"]] = "given"  # pooled: one client trains on all
    same_entries: ClassVar[bool] = True  # an entry means the same in every client's reply
    takes_start: ClassVar[bool] = True  # begins with the parameters of the task, or of a file
    version: ClassVar[int] = 1  # raised when a change makes equal options give other results
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # options by the name they go under

    def in_run(self, rounds: int) -> Self:
        """The method with what depends on the length of the run filled in.

        Warns of what cannot work in so few rounds as it is set.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return replace(self, **{n: in_run(v, rounds) for n, v in values.items()})  # type: ignore[type-var]

    @abstractmethod
    def init_server(self, key: Key) -> Server:
        """What the server holds before the first round."""

    @abstractmethod
    def init_client(self, client: int, key: Key) -> State:
        """What a client holds before it is first asked; `()` when it keeps nothing."""

    @abstractmethod
    def broadcast(self, server: Server, key: Key) -> Down | PerClient[Down]:
        """The message to all clients of a round, or one for each."""

    @abstractmethod
    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        """One client's local work; must not change its inputs."""

    @abstractmethod
    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        """The next server state from the replies of a round."""

    @abstractmethod
    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        """The model to evaluate and export: the global one for `()`, a client's own for its state.

        None says that there is no such model.
        """

    def cohort(self, size: int, done: int) -> Cohort:
        """Who takes part in the round after `done` rounds; by default a fresh draw of `size`."""
        return Cohort(size, draw=done)

    def observe(self, down: Down, state: State) -> State:
        """What a client outside the cohort does with the broadcast; see `Cohort.reaches_all`."""
        raise NotImplementedError

    def report(self, server: Server) -> Report:
        """Figures and gates for logs and reports."""
        return Report()

    def predict(self, model: Params, x: Tensor) -> Tensor:
        """Outputs of a model that `model` gave."""
        return self.task.predict(model, x)

    def paper_bytes(self, message: Down | Up) -> int:
        """The paper's own byte formula for a message; by default 4 bytes for each value sent."""
        return message_paper_bytes(message)


AnyMethod: TypeAlias = Method[Any, Any, Any, Any]


def in_run(value: Any, rounds: int) -> Any:
    """An option in a run of so many rounds: schedules that end with the run get its length."""
    return value.in_run(rounds) if hasattr(value, "in_run") else value


def message_types(method: AnyMethod) -> tuple[type, type]:
    """The classes of Down and Up, as declared in `class X(Method[Server, State, Down, Up])`.

    A family of methods may stand in the place of Method, with these four first.
    """
    for cls in type(method).__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, kinds = get_origin(base), get_args(base)
            is_method = isinstance(origin, type) and issubclass(origin, Method)
            if is_method and not any(isinstance(kind, TypeVar) for kind in kinds):
                return kinds[2], kinds[3]
    raise TypeError(
        f"{type(method).__qualname__} does not name its messages: "
        "declare it as a subclass of Method[Server, State, Down, Up]."
    )


_methods: dict[str, type[AnyMethod]] = {}
M = TypeVar("M", bound=type[AnyMethod])


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known under `name`."""

    def add(cls: M) -> M:
        if name in _methods and _methods[name].__qualname__ != cls.__qualname__:
            raise ConfigError(f"method {name!r} is registered already, as {_methods[name]}.")
        _methods[name] = cls
        return cls

    return add


def registered() -> dict[str, type[AnyMethod]]:
    """All known methods by name."""
    return dict(sorted(_methods.items()))


def method_class(name: str) -> type[AnyMethod]:
    """The class registered as `name`, or ConfigError with the nearest known name."""
    if name not in _methods:
        raise ConfigError(unknown("method", name, _methods))
    return _methods[name]
