"""The pool executor: clients side by side in worker processes, one torch thread each.

Workers are forked, so data and model are shared without copying. Requests go out largest client
first (the caller's order) to whichever worker is free; results do not depend on who did the work.
A broadcast or a model is sent to each worker once.
"""

import multiprocessing
import signal
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedsieve.core.errors import ConfigError, WireError
from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.request_encoding import REQUESTS, RESPONSES, Held, Kinds, PackedOnce, parts
from fedsieve.engine.requests import Evaluate, EvaluateOwn, Failure, Request, Response, who


class Pool:
    """`workers` processes that serve requests until closed."""

    def __init__(self, runtime: ClientRuntime, workers: int, state_kind: type) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ConfigError(
                f"workers={workers}: this system cannot fork processes. Use workers=1."
            )
        self._runtime, self._kinds = runtime, Kinds(state_kind)
        self._packed: PackedOnce = {}
        self._workers = [_Worker(runtime, self._kinds) for _ in range(workers)]

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
                worker.send(request, self._packed)
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
                except WireError as error:
                    worker = self._replace(worker)
                    yield Failure(who(request), f"its answer cannot be used: {error}")
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
        fresh = _Worker(self._runtime, self._kinds)
        self._workers[self._workers.index(dead)] = fresh
        return fresh


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, runtime: ClientRuntime, kinds: Kinds) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, childs = context.Pipe()
        self._kinds, self._held = kinds, Held()
        self._process = context.Process(
            target=_serve, args=(childs, self.connection, runtime, kinds), daemon=True
        )
        self._process.start()
        childs.close()

    def send(self, request: Request, packed: PackedOnce) -> None:
        with suppress(OSError):  # a dead worker is noticed when its answer is read
            _send(self.connection, parts(request, packed, self._held))

    def receive(self) -> Response:
        pipe = self.connection
        return RESPONSES.read(pipe.recv_bytes(), iter(pipe.recv_bytes, None), self._kinds)

    def close(self) -> None:
        self.connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, parents: Connection, runtime: ClientRuntime, kinds: Kinds) -> None:
    """Answer requests in a worker process until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.close()
    torch.set_num_threads(1)
    held = Held()
    while True:
        try:
            blobs = iter(pipe.recv_bytes, None)
            request = REQUESTS.read(pipe.recv_bytes(), blobs, kinds, held)
            _send(pipe, parts(runtime.handle(request)))
        except (EOFError, OSError):
            return


def _send(pipe: Connection, message: Iterator[bytes]) -> None:
    for _ in map(pipe.send_bytes, message):  # no part is kept while the next one is made
        pass
