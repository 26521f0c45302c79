"""Executes client requests: training, observing, evaluating. The same in every executor."""

import time
import traceback
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray

from fedsieve.core import tree
from fedsieve.core.errors import FedsieveError
from fedsieve.core.keys import fold
from fedsieve.core.message import Params, count_nonzero
from fedsieve.core.method import AnyMethod, message_types
from fedsieve.data.federation import Federation
from fedsieve.engine.broadcast import held_at_start, held_of
from fedsieve.engine.budget import fitted
from fedsieve.engine.error_feedback import (
    add_residual,
    aged,
    dated,
    divided,
    masked_out,
    residual_of,
)
from fedsieve.engine.mask_cache import unpacked
from fedsieve.engine.requests import (
    Evaluate,
    EvaluateOwn,
    Failure,
    Observe,
    Observed,
    Refusal,
    Reply,
    Request,
    Response,
    Share,
    Tallies,
    Train,
    who,
)
from fedsieve.metrics.macs import training_macs
from fedsieve.wire.codec import Coding, Decoder, Known, UnheldError, encode, masks_of
from fedsieve.wire.compressors import EXACT, Compression
from fedsieve.wire.compressors.uniform import Uniform
from fedsieve.wire.contexts import contexts_of
from fedsieve.wire.feedback import Ef21, Feedback
from fedsieve.wire.frame import Payload
from fedsieve.wire.schema import Hash, schema_of
from fedsieve.wire.versions import change_of, is_change_of

Held: TypeAlias = dict[Hash, NDArray[Any]]  # what both ends hold, by name


class Wire(NamedTuple):
    """How a client's floats travel, and whether it makes up for what is lost.

    Attributes:
        compression: of its messages.
        is_change: differences to the broadcast are compressed, not values.
        error_feedback: what is done about what a message loses.
        down: of broadcasts.
    """

    compression: Compression = EXACT
    is_change: bool = False
    error_feedback: Feedback | None = None
    down: Compression = EXACT


LOSSLESS = Wire()


class ClientRuntime:
    """Executes the requests of one process: a method, its data and a decoder of broadcasts."""

    def __init__(
        self, method: AnyMethod, federation: Federation, wire: Wire = LOSSLESS, seed: int = 0
    ) -> None:
        self._method, self._federation, self._wire = method, federation, wire
        self._start = cache(lambda: held_at_start(method, seed, wire.down))
        self._down_kind, self._up_kind = message_types(method)
        self._decoder = Decoder()
        self._last: tuple[bytes, Any, Held] = (b"", None, {})
        self.masks: Held = {}  # of the last exchange, both ways

    @property
    def schemas(self) -> tuple[bytes, ...]:
        """Schemas of broadcasts that it has been told."""
        return tuple(schema.packed() for schema in self._decoder.schemas.values())

    def learn(self, schemas: Iterable[bytes]) -> None:
        """Add schemas of broadcasts that were told before this process began."""
        for packed in schemas:
            self._decoder.learn(packed)

    def handle(self, request: Request) -> Response:
        """Execute a request; an error becomes a response, so that the run can decide."""
        try:
            match request:
                case Train():
                    return self.train(request)
                case Observe():
                    return self.observe(request)
                case Evaluate():
                    return self.evaluate(request)
                case EvaluateOwn():
                    return self.evaluate(self.deployed(request))
        except UnheldError as error:
            return Refusal(who(request), str(error))
        except Exception as error:  # noqa: BLE001 - any fault of a client is reported, not raised
            text = f"{type(error).__name__}: {error}"
            is_told = isinstance(error, FedsieveError)  # a sentence for users says it all
            return Failure(who(request), text, "" if is_told else traceback.format_exc())

    def train(self, request: Train) -> Reply | Failure:
        """Decode the broadcast, train, encode the reply."""
        started = time.perf_counter()
        down, masks = self._decoded(request)
        data = self._federation.batches(request.client)
        start, lost = self._remembered(request, down)
        up, state, metrics = self._method.client_update(start, request.state, data, request.key)
        if not tree.is_finite(state, checked=request.state):
            return Failure(request.client, "its state has non-finite values: lower learning rates")
        payload, residual, held = self._encoded(up, request, down, masks, lost)
        self.masks = masks | held
        return Reply(
            client=request.client,
            up=payload,
            paper_bytes=self._method.paper_bytes(up),
            state=state,
            residual=residual,
            values=metrics.values,
            macs=training_macs(
                self._method.task.graph, metrics.processed, metrics.mask, metrics.dense_gradients
            ),
            seconds=time.perf_counter() - started,
        )

    def observe(self, request: Observe) -> Observed:
        """Decode the broadcast and let the method see it."""
        down, _ = self._decoded(request)
        return Observed(request.client, self._method.observe(down, request.state))

    def evaluate(self, request: Evaluate) -> Tallies:
        """Evaluate a model on test shards."""
        model, rows = request.model, []
        for shard in request.shards:
            parts = [
                self._method.task.tally(self._method.predict(model, batch.x), batch.y)
                for batch in self._federation.scored_batches(shard)
            ]
            rows.append(torch.stack(parts).sum(0))
        tallies = torch.stack(rows) if rows else torch.empty(0, dtype=torch.float64)
        names = self._method.task.graph.maskable if model and request.client >= 0 else ()
        return Tallies(request.shards, tallies, request.client, shares_of(model, names))

    def deployed(self, request: EvaluateOwn) -> Evaluate:
        """The request with the client's own model; without one there is nothing to evaluate."""
        model = self._method.model(request.server, request.state)
        shards = () if model is None else request.shards
        return Evaluate(model or {}, shards, request.client)

    def _decoded(self, request: Train | Observe) -> tuple[Any, Held]:
        """The broadcast and its masks; equal bytes in a row are decoded once."""
        if self._last[1] is None or self._last[0] != request.down:
            if request.schema:
                self._decoder.learn(request.schema)
            held = {**self._start(), **unpacked(request.masks)}
            down = self._decoder.decode(request.down, self._down_kind, held)
            self._last = request.down, down, held_of(down, self._wire.down) if down else {}
        return self._last[1:]

    def _remembered(self, request: Train, down: Any) -> tuple[Any, Params]:
        """The broadcast to train from, and what is to be added to the message."""
        how = self._wire.error_feedback
        if how is None or isinstance(how, Ef21):
            return down, {}
        residual = aged(request.residual, how.decay, request.round)
        before, after = divided(residual, how, down, self._up_kind)
        return add_residual(down, before) if before else down, after

    def _encoded(
        self, up: Any, request: Train, down: Any, masks: Held, lost: Params
    ) -> tuple[Payload, Params, Held]:
        """The message as bytes, what it leaves for the next one, and what both ends hold by it."""
        contexts = contexts_of(self._up_kind, down)
        held = unpacked(request.masks)
        known = Known(request.announced, held | masks, contexts)
        how, keeps = self._wire.error_feedback, keeps_change(self._wire)
        base = down if self._wire.is_change or keeps else None
        coding = Coding(self._wire.compression, fold(request.key, "wire"), base)
        if how is None or not up or (isinstance(how, Ef21) and not keeps):
            payload = _payload(up, known, coding, request.budget)
            return payload, request.residual, masks_of(up) if up else {}
        if keeps:
            coding = coding._replace(change=_last_change(up, held))
        meant = add_residual(up, lost)
        payload = _payload(meant, known, coding, request.budget)
        self._decoder.learn(schema_of(meant)[0].packed())
        arrived = self._decoder.decode(
            payload.data, self._up_kind, known.masks, contexts=contexts, base=base
        )
        if isinstance(how, Ef21):
            return payload, {}, masks_of(up) | change_of(arrived, down)
        residual = residual_of(meant, arrived)
        if how.masked:
            missing = masked_out(up, lost, down)
            residual |= {path: residual[path] + left for path, left in missing.items()}
        residual = dated(residual, how.decay, request.round)
        return payload, residual or request.residual, masks_of(up)  # nothing sent: as before


def keeps_change(wire: Wire) -> bool:
    """Whether both ends hold what a client's last reply has changed."""
    return isinstance(wire.error_feedback, Ef21) and wire.compression != EXACT


def _last_change(up: Any, held: Held) -> Hash:
    """The name of the last change of a message of the same tensors that both ends hold, or 0."""
    return next((name for name, flat in held.items() if is_change_of(name, flat, up)), 0)


def _payload(up: Any, known: Known, coding: Coding, budget: int) -> Payload:
    """The message, with steps that make it as long as was asked for."""
    how = coding.compression
    if not budget or not isinstance(how, Uniform) or not up:
        return encode(up, known, coding)
    return fitted(lambda h: encode(up, known, coding._replace(compression=h)), how, budget)


def shares_of(model: Params, names: Iterable[str]) -> dict[str, Share]:
    """The share of non-zeros in each of the named tensors."""
    sizes = {name: model[name].numel() for name in names}
    return {n: Share(count_nonzero(model[n]) / size, size) for n, size in sizes.items()}
