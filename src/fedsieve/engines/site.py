"""A site: where a client's work is done. The same in every executor."""

import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Params
from fedsieve.core.method import AnyMethod, message_types
from fedsieve.data.federation import Federation
from fedsieve.engines.feedback import add_residual, residual_of
from fedsieve.ledger.flops import Flops, flops
from fedsieve.wire.codec import Bools, Coding, Decoder, Known, UnheldError, encode, masks_of
from fedsieve.wire.frame import Payload
from fedsieve.wire.precision import Precision
from fedsieve.wire.schema import Hash, schema_of


class Train(NamedTuple):
    """One client's part of a round."""

    client: int
    down: bytes
    schema: bytes  # of `down`, if the client was told in an earlier round; else b""
    announced: frozenset[Hash]  # schemas this client has told the server
    masks: dict[Hash, Bools]  # that both hold since their last exchange
    state: Any
    residual: Params  # what rounding took from its last message; empty without error feedback
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
    residual: Params
    values: dict[str, float]
    flops: Flops
    seconds: float


class Refusal(NamedTuple):
    """A broadcast that refers to something the client does not hold: send it whole."""

    client: int
    error: str


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
Response: TypeAlias = Reply | Refusal | Failure | Tallies
Executor: TypeAlias = Callable[[Iterable[Request]], Iterable[Response]]


class Wire(NamedTuple):
    """How floats travel, and whether clients make up for rounding."""

    precision: Precision = "fp32"
    error_feedback: bool = False


LOSSLESS = Wire()


class Site:
    """Method, data and decoder of one process."""

    def __init__(self, method: AnyMethod, federation: Federation, wire: Wire = LOSSLESS) -> None:
        self._method, self._federation, self._wire = method, federation, wire
        self._down_kind, self._up_kind = message_types(method)
        self._decoder = Decoder()
        self._last: tuple[bytes, Any, dict[Hash, Bools]] = (b"", None, {})

    def handle(self, request: Request) -> Response:
        """Do the work; whatever goes wrong is reported, so that the run can decide."""
        try:
            return self.train(request) if isinstance(request, Train) else self.evaluate(request)
        except UnheldError as error:
            return Refusal(_who(request), str(error))
        except Exception as error:  # noqa: BLE001 - any fault of a client is reported, not raised
            text = f"{type(error).__name__}: {error}"
            return Failure(_who(request), text, traceback.format_exc())

    def train(self, request: Train) -> Reply | Failure:
        """Decode, train, encode."""
        started = time.perf_counter()
        down, masks = self._decoded(request)
        data = self._federation.batches(request.client)
        up, state, metrics = self._method.client_update(down, request.state, data, request.key)
        if not tree.is_finite(state, checked=request.state):
            return Failure(request.client, "its state has non-finite values")
        payload, residual = self._encoded(up, request, masks)
        return Reply(
            client=request.client,
            up=payload,
            paper_bytes=self._method.paper_bytes(up),
            state=state,
            residual=residual,
            values=metrics.values,
            flops=flops(self._method.task.graph, metrics.processed, metrics.mask),
            seconds=time.perf_counter() - started,
        )

    def evaluate(self, request: Evaluate) -> Tallies:
        rows = []
        for shard in request.shards:
            parts = [
                self._method.task.tally(self._method.predict(request.model, batch.x), batch.y)
                for batch in self._federation.scored_batches(shard)
            ]
            rows.append(torch.stack(parts).sum(0))
        return Tallies(request.shards, torch.stack(rows))

    def _decoded(self, request: Train) -> tuple[Any, dict[Hash, Bools]]:
        """A broadcast and its masks, decoded once per process: equal bytes are the same message."""
        if self._last[1] is None or self._last[0] != request.down:
            if request.schema:
                self._decoder.learn(request.schema)
            down = self._decoder.decode(request.down, self._down_kind, request.masks)
            self._last = request.down, down, masks_of(down) if down else {}
        return self._last[1:]

    def _encoded(self, up: Any, request: Train, masks: dict[Hash, Bools]) -> tuple[Payload, Params]:
        known = Known(request.announced, request.masks | masks)
        coding = Coding(self._wire.precision, fold(request.key, "wire"))
        if not self._wire.error_feedback:
            return encode(up, known, coding), {}
        meant = add_residual(up, request.residual)
        payload = encode(meant, known, coding)
        self._decoder.learn(schema_of(meant)[0].packed())
        arrived = self._decoder.decode(payload.data, self._up_kind, known.masks)
        return payload, residual_of(meant, arrived)


def _who(request: Request) -> int:
    return request.client if isinstance(request, Train) else request.shards[0]
