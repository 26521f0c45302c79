"""Requests to clients and their responses; `request_encoding` makes bytes of them."""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import torch
from msgspec import Meta
from torch import Tensor

from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key
from fedsieve.core.message import Params
from fedsieve.engine.mask_cache import Packed
from fedsieve.metrics.macs import Macs
from fedsieve.wire.frame import Payload
from fedsieve.wire.schema import Hash

_MAX_AMOUNT = 2**56  # sums over a cohort stay far from 2**64, which no row can hold
# Lengths are checked before a table is read: else each byte might take a dozen in memory.
_FEW, _MANY, _CLIENTS = Meta(max_length=2**10), Meta(max_length=2**14), Meta(max_length=2**20)


class Blob(NamedTuple):
    """Marks a field that travels beside the header."""

    holds: Literal["bytes", "payload", "tensor", "params", "state", "server"]
    is_shared: bool = False  # the same for many clients: a peer that holds it is not sent it again


Amount: TypeAlias = Annotated[int, Meta(ge=0, lt=_MAX_AMOUNT)]
Shards: TypeAlias = Annotated[tuple[int, ...], _CLIENTS]
Broadcast: TypeAlias = Annotated[bytes, Blob("bytes", is_shared=True)]
Model: TypeAlias = Annotated[Params, Blob("params", is_shared=True)]
ServerState: TypeAlias = Annotated[Any, Blob("server", is_shared=True)]
ClientState: TypeAlias = Annotated[Any, Blob("state")]  # or the Receipt of one its owner keeps
Residual: TypeAlias = Annotated[Params, Blob("params")]


class Train(NamedTuple):
    """Train one client on a broadcast."""

    client: int
    down: Broadcast
    schema: bytes  # of `down`, if the client was told in an earlier round; else b""
    announced: frozenset[Hash]  # schemas this client has told the server
    masks: Mapping[Hash, Packed | None]  # of the last exchange; None: the client keeps it itself
    state: ClientState
    residual: Residual  # what rounding took from its last message; empty without error feedback
    key: Key
    round: int
    budget: int = 0  # bytes that its message should take; 0: whatever it does


class Observe(NamedTuple):
    """Show a broadcast to a client outside the cohort; fields as in Train."""

    client: int
    down: Broadcast
    schema: bytes
    masks: Mapping[Hash, Packed | None]
    state: ClientState
    round: int


class Evaluate(NamedTuple):
    """Evaluate a model on test shards, or on none; `client` says whose own model it is."""

    model: Model
    shards: Shards
    client: int = -1


class EvaluateOwn(NamedTuple):
    """Evaluate a client's own model, made where its state is, on test shards or on none."""

    client: int
    server: ServerState
    state: ClientState
    shards: Shards


class Reply(NamedTuple):
    """The result of training."""

    client: int
    up: Annotated[Payload, Blob("payload")]
    paper_bytes: Amount
    state: ClientState
    residual: Residual
    values: Annotated[dict[str, float], _FEW]
    macs: Macs
    seconds: float


class Observed(NamedTuple):
    """The state of a client that has read a broadcast."""

    client: int
    state: ClientState


class Refusal(NamedTuple):
    """The broadcast refers to something the client does not hold: send it whole."""

    client: int
    error: str


class Failure(NamedTuple):
    """The request raised an error; the client's state stays as it was."""

    client: int  # or the first shard of an evaluation
    error: str
    trace: str = ""


class Share(NamedTuple):
    """Share of non-zeros in a tensor, and its size."""

    density: Annotated[float, Meta(ge=0, le=1)]
    size: Annotated[int, Meta(ge=1, lt=_MAX_AMOUNT)]


class Tallies(NamedTuple):
    """Sums of right answers and losses, one row per shard; `shares` of a client's own model."""

    shards: Shards
    tallies: Annotated[Tensor, Blob("tensor")]
    client: int = -1
    shares: Annotated[dict[str, Share], _MANY] = {}  # noqa: RUF012 - never changed


Request: TypeAlias = Train | Observe | Evaluate | EvaluateOwn
Response: TypeAlias = Reply | Observed | Refusal | Failure | Tallies
Message: TypeAlias = Request | Response
Executor: TypeAlias = Callable[[Iterable[Request]], Generator[Response, None, None]]


def who(request: Request) -> int:
    """The client of a request, or the first shard of an evaluation."""
    if isinstance(request, Evaluate) and request.client < 0:
        return request.shards[0]
    return request.client


def for_node(request: Request) -> Request:
    """The request for a node, which keeps schemas and masks itself: masks are named, not sent."""
    if isinstance(request, Train | Observe):
        return request._replace(schema=b"", masks=dict.fromkeys(request.masks))
    return request


def check_answer(request: Request, response: Response, number: int) -> None:
    """Raise WireError unless `response` is a possible answer of who got `request` in a round."""
    answers: dict[type, type] = {Train: Reply, Observe: Observed}
    expected = answers.get(type(request), Tallies)
    if not isinstance(response, Refusal | Failure | expected):
        raise WireError(f"{type(response).__name__} is no answer to {type(request).__name__}.")
    client = request.client if isinstance(response, Tallies) else who(request)
    if response.client != client:
        raise WireError(f"it speaks for client {response.client}, {client} was asked.")
    if isinstance(response, Reply | Observed) and response.state.version != number:
        raise WireError(f"its state is of round {response.state.version}, not of {number}.")
    if (
        isinstance(response, Tallies)
        and isinstance(request, Evaluate | EvaluateOwn)
        and response.shards not in ((), request.shards)
    ):
        raise WireError(f"{len(response.shards)} shards, {len(request.shards)} were asked for.")


def check_values(message: Message) -> None:
    """Raise WireError where values do not go together, or are no possible ones."""
    if isinstance(message, Reply) and not all(0 <= count < _MAX_AMOUNT for count in message.macs):
        raise WireError(f"Reply.macs: {tuple(message.macs)} are impossible.")
    if isinstance(message, Tallies):
        rows = message.tallies
        if rows.dtype != torch.float64 or not rows.dim() or len(rows) != len(message.shards):
            raise WireError(
                f"Tallies.tallies: {rows.dtype} of shape {list(rows.shape)} for "
                f"{len(message.shards)} shards, expected a row of float64 for each."
            )
