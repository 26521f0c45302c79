"""A site: where a client's work is done. The same in every executor."""

import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key
from fedsieve.core.message import Params
from fedsieve.core.method import AnyMethod, message_types
from fedsieve.data.federation import Federation
from fedsieve.ledger.flops import Flops, flops
from fedsieve.wire.codec import Decoder, encode
from fedsieve.wire.frame import Payload


class Train(NamedTuple):
    """One client's part of a round."""

    client: int
    down: bytes
    schema: bytes  # of `down`, if the client was told in an earlier round; else b""
    announced: frozenset[int]  # schemas this client has told the server
    state: Any
    key: Key


class Evaluate(NamedTuple):
    """A model on some test shards."""

    model: Params
    shards: tuple[int, ...]


class Reply(NamedTuple):
    """What a client answers."""

    client: int
    up: Payload
    paper_bytes: int
    state: Any
    values: dict[str, float]
    flops: Flops
    seconds: float


class Failure(NamedTuple):
    """Work that raised; the client's state stays as it was."""

    client: int  # or the first shard of an evaluation
    error: str
    trace: str = ""


class Tallies(NamedTuple):
    """Sums of right answers and losses, one row per shard."""

    shards: tuple[int, ...]
    tallies: Tensor


Request: TypeAlias = Train | Evaluate
Response: TypeAlias = Reply | Failure | Tallies
Executor: TypeAlias = Callable[[Iterable[Request]], Iterable[Response]]


class Site:
    """Method, data and decoder of one process."""

    def __init__(self, method: AnyMethod, federation: Federation) -> None:
        self._method, self._federation = method, federation
        self._down_kind, _ = message_types(method)
        self._decoder = Decoder()
        self._last_down: tuple[bytes, Any] = (b"", None)

    def handle(self, request: Request) -> Response:
        """Do the work; whatever goes wrong is reported, so that the run can decide."""
        try:
            return self.train(request) if isinstance(request, Train) else self.evaluate(request)
        except Exception as error:  # noqa: BLE001 - any fault of a client is reported, not raised
            who = request.client if isinstance(request, Train) else request.shards[0]
            return Failure(who, f"{type(error).__name__}: {error}", traceback.format_exc())

    def train(self, request: Train) -> Reply | Failure:
        """Decode, train, encode."""
        started = time.perf_counter()
        down = self._decoded(request)
        data = self._federation.batches(request.client)
        up, state, metrics = self._method.client_update(down, request.state, data, request.key)
        if not tree.is_finite(state):
            return Failure(request.client, "its state has non-finite values")
        return Reply(
            client=request.client,
            up=encode(up, request.announced),
            paper_bytes=self._method.paper_bytes(up),
            state=state,
            values=metrics.values,
            flops=flops(self._method.task.graph, metrics.processed, metrics.mask),
            seconds=time.perf_counter() - started,
        )

    def evaluate(self, request: Evaluate) -> Tallies:
        rows = []
        for shard in request.shards:
            batches = self._federation.test_batches(self._federation.test(shard))
            parts = [
                self._method.task.tally(self._method.predict(request.model, batch.x), batch.y)
                for batch in batches
            ]
            rows.append(torch.stack(parts).sum(0))
        return Tallies(request.shards, torch.stack(rows))

    def _decoded(self, request: Train) -> Any:
        """A broadcast is decoded once per process: equal bytes are the same message."""
        if self._last_down[1] is None or self._last_down[0] != request.down:
            if request.schema:
                self._decoder.learn(request.schema)
            message = self._decoder.decode(request.down, self._down_kind)
            self._last_down = request.down, message
        return self._last_down[1]
