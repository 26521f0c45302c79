"""The pool executor: clients side by side in worker processes, one torch thread each.

Workers are forked, so data and model are shared without copying. Requests go out largest client
first (the caller's order) to whichever worker is free; results do not depend on who did the work.
A broadcast crosses to each worker once. Pipes carry msgpack headers and safetensors blobs.
"""

import multiprocessing
import signal
from collections.abc import Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.message import Params
from fedsieve.engine import blob
from fedsieve.engine.client import (
    ClientRuntime,
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
from fedsieve.engine.mask_cache import Packed, recall, remember
from fedsieve.metrics.macs import Macs
from fedsieve.wire.codec import Bools
from fedsieve.wire.frame import Payload
from fedsieve.wire.schema import Hash


class Pool:
    """`workers` processes that serve requests until closed."""

    def __init__(self, runtime: ClientRuntime, workers: int, state_kind: type) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ConfigError(
                f"workers={workers}: this system cannot fork processes. Use workers=1."
            )
        self._runtime, self._state_kind = runtime, state_kind
        self._workers = [_Worker(runtime, state_kind) for _ in range(workers)]

    def __call__(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        busy: dict[Any, tuple[_Worker, Request]] = {}  # by connection
        try:
            yield from self._work(iter(requests), busy)
        finally:
            for worker, _ in busy.values():  # a caller that has enough leaves work behind
                self._replace(worker)

    def _work(
        self, waiting: Iterator[Request], busy: dict[Any, tuple["_Worker", Request]]
    ) -> Generator[Response, None, None]:
        idle = list(self._workers)
        while True:
            while idle and (request := next(waiting, None)) is not None:
                if isinstance(request, EvaluateOwn):
                    request = self._runtime.deployed(request)
                if isinstance(request, Evaluate) and not request.shards:
                    yield self._runtime.handle(request)  # counting is less work than sending
                    continue
                worker = idle.pop()
                worker.send(request)
                busy[worker.connection] = worker, request
            if not busy:
                return
            for connection in wait(list(busy)):
                worker, request = busy.pop(connection)
                try:
                    response = worker.receive()
                except (EOFError, OSError):
                    worker = self._replace(worker)
                    yield Failure(who(request), "its worker process died")
                else:
                    yield response
                idle.append(worker)

    def close(self) -> None:
        for worker in self._workers:  # all pipes first: later workers hold ends of earlier ones
            worker.connection.close()
        for worker in self._workers:
            worker.close()

    def _replace(self, dead: "_Worker") -> "_Worker":
        dead.close()
        fresh = _Worker(self._runtime, self._state_kind)
        self._workers[self._workers.index(dead)] = fresh
        return fresh


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, runtime: ClientRuntime, state_kind: type) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._state_kind = state_kind
        self._process = context.Process(
            target=_serve, args=(theirs, self.connection, runtime, state_kind), daemon=True
        )
        self._process.start()
        theirs.close()
        self._held: tuple[Any, Any] = (None, None)  # the broadcast and the model it has

    def send(self, request: Request) -> None:
        down, model = self._held
        try:
            match request:
                case Train(client, fresh, schema, announced, masks, state, residual, key, number):
                    is_new = fresh is not down
                    told = sorted(announced), _packed_masks(masks)
                    self._write("train", client, schema, *told, key, number, is_new)
                    if is_new:
                        self.connection.send_bytes(fresh)
                    self.connection.send_bytes(blob.pack(state))
                    self.connection.send_bytes(blob.pack(residual))
                    self._held = fresh, model
                case Observe(client, fresh, schema, masks, state, number):
                    is_new = fresh is not down
                    self._write("observe", client, schema, _packed_masks(masks), number, is_new)
                    if is_new:
                        self.connection.send_bytes(fresh)
                    self.connection.send_bytes(blob.pack(state))
                    self._held = fresh, model
                case Evaluate(fresh_model, shards, client):
                    is_new = fresh_model is not model
                    self._write("evaluate", list(shards), client, is_new)
                    if is_new:
                        self.connection.send_bytes(blob.pack(fresh_model))
                    self._held = down, fresh_model
        except OSError:
            pass  # the dead worker is noticed when its answer is read

    def receive(self) -> Response:
        head = msgspec.msgpack.decode(self.connection.recv_bytes())
        match head:
            case ["reply", client, parts, paper, values, macs, seconds]:
                up = Payload(self.connection.recv_bytes(), *parts)
                state = blob.unpack(self._state_kind, self.connection.recv_bytes())
                residual = blob.unpack(Params, self.connection.recv_bytes())
                return Reply(client, up, paper, state, residual, values, Macs(*macs), seconds)
            case ["refusal", client, error]:
                return Refusal(client, error)
            case ["failure", client, error, trace]:
                return Failure(client, error, trace)
            case ["observed", client]:
                return Observed(client, blob.unpack(self._state_kind, self.connection.recv_bytes()))
            case ["tallies", shards, client, shares]:
                tallies = blob.unpack(Params, self.connection.recv_bytes())["tallies"]
                parts = {name: Share(*share) for name, share in shares.items()}
                return Tallies(tuple(shards), tallies, client, parts)
        raise EOFError

    def close(self) -> None:
        self.connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()

    def _write(self, *head: Any) -> None:
        self.connection.send_bytes(msgspec.msgpack.encode(head))


def _serve(pipe: Connection, parents: Connection, runtime: ClientRuntime, state_kind: type) -> None:
    """A worker's life: answer until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.close()
    torch.set_num_threads(1)
    down, model = b"", dict[str, torch.Tensor]()
    while True:
        try:
            head = msgspec.msgpack.decode(pipe.recv_bytes())
            match head:
                case ["train", client, schema, announced, packed, key, number, is_new]:
                    down = pipe.recv_bytes() if is_new else down
                    state = blob.unpack(state_kind, pipe.recv_bytes())
                    residual = blob.unpack(Params, pipe.recv_bytes())
                    table = {mark: Packed(bits, size) for mark, bits, size in packed}
                    told = frozenset(announced), recall(table, table)
                    request = Train(client, down, schema, *told, state, residual, key, number)
                    _answer(pipe, runtime.handle(request))
                case ["observe", client, schema, packed, number, is_new]:
                    down = pipe.recv_bytes() if is_new else down
                    state = blob.unpack(state_kind, pipe.recv_bytes())
                    table = {mark: Packed(bits, size) for mark, bits, size in packed}
                    heard = Observe(client, down, schema, recall(table, table), state, number)
                    _answer(pipe, runtime.handle(heard))
                case ["evaluate", shards, client, is_new]:
                    model = blob.unpack(Params, pipe.recv_bytes()) if is_new else model
                    _answer(pipe, runtime.handle(Evaluate(model, tuple(shards), client)))
        except (EOFError, OSError):
            return


def _packed_masks(masks: dict[Hash, Bools]) -> list[tuple[Hash, bytes, int]]:
    return [(mark, *packed) for mark, packed in remember({}, masks).items()]


def _answer(pipe: Connection, response: Response) -> None:
    match response:
        case Reply(client, up, paper, state, residual, values, macs, seconds):
            head = ["reply", client, up[1:], paper, values, macs, seconds]
            pipe.send_bytes(msgspec.msgpack.encode(head))
            pipe.send_bytes(up.data)
            pipe.send_bytes(blob.pack(state))
            pipe.send_bytes(blob.pack(residual))
        case Refusal():
            pipe.send_bytes(msgspec.msgpack.encode(["refusal", *response]))
        case Failure():
            pipe.send_bytes(msgspec.msgpack.encode(["failure", *response]))
        case Observed(client, state):
            pipe.send_bytes(msgspec.msgpack.encode(["observed", client]))
            pipe.send_bytes(blob.pack(state))
        case Tallies(shards, tallies, client, shares):
            pipe.send_bytes(msgspec.msgpack.encode(["tallies", shards, client, shares]))
            pipe.send_bytes(blob.pack({"tallies": tallies}))
