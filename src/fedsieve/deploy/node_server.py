"""Answers calls on a node, and keeps the client's states, versioned by round, on disk.

    jobs/<job>/config.toml  form.msgpack  memory.msgpack
    jobs/<job>/states/<client>-<round>.safetensors

A call names the version it starts from, the last one the server accepted. A reply that was lost or
came late has left a newer version behind; it is dropped with the next call. A call that is older
than one already answered is refused, so that a round the server has given up changes nothing.
"""

import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from fedsieve.core import tree
from fedsieve.core.errors import FedsieveError, WireError
from fedsieve.core.keys import fold
from fedsieve.core.message import Params
from fedsieve.core.method import AnyMethod
from fedsieve.data.federation import Federation
from fedsieve.deploy.envelope import (
    Answer,
    Call,
    Hello,
    Ready,
    Refused,
    UnknownJob,
    digest,
    seal,
    unseal,
)
from fedsieve.deploy.signature import Private, Public
from fedsieve.engine import disk
from fedsieve.engine.client import ClientRuntime, Wire
from fedsieve.engine.mask_cache import MaskTable, Packed, remember, subset
from fedsieve.engine.request_encoding import REQUESTS, Kinds, encode
from fedsieve.engine.requests import (
    EvaluateOwn,
    Failure,
    Observe,
    Observed,
    Reply,
    Request,
    Response,
    Train,
)
from fedsieve.engine.store import ClientStore, Receipt, Stores, open_stores
from fedsieve.wire.feedback import Remembered

log = logging.getLogger("fedsieve")
_RAM_BYTES = 10**9
_KEPT_BYTES = 2**26


class Opened(NamedTuple):
    """A job as the node sees it: built from the server's configuration on its own data."""

    method: AnyMethod
    federation: Federation
    wire: Wire
    seed: int


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """What a node remembers: the newest call, and what messages may refer to."""

    newest: tuple[int, int] = (0, 0)  # session, round
    schemas: tuple[bytes, ...] = ()
    masks: tuple[tuple[int, bytes, int], ...] = ()


class _Work(NamedTuple):
    """A job in progress."""

    opened: Opened
    runtime: ClientRuntime
    stores: Stores
    server_kind: type

    @property
    def kept(self) -> list[ClientStore]:
        """Stores this job writes to."""
        states, residuals = self.stores
        stateful = [] if states.is_stateless else [states]
        has_residual = isinstance(self.opened.wire.error_feedback, Remembered)
        return [*stateful, residuals] if has_residual else stateful


Opener = Callable[[Hello], Opened]


class NodeServer:
    """Answers the calls for one client.

    Args:
        client: who this node is.
        folder: where states are kept.
        open_job: makes a job of what the server says.
        key: signs answers; `server` verifies calls. None of both: a trial without keys.
    """

    def __init__(
        self,
        client: int,
        folder: Path,
        open_job: Opener,
        key: Private | None = None,
        server: Public | None = None,
    ) -> None:
        self._client, self._folder, self._open_job = client, folder, open_job
        self._key, self._server = key, server
        self._work: dict[str, _Work] = {}
        self._last = b"", b""  # call and answer: a call that is sent again is not worked on again
        self._taken = ""  # the job this node takes part in

    def answer(self, envelope: bytes) -> bytes:
        """Answer a call; an error is answered too.

        Raises:
            WireError: the envelope is not a call that the server has signed.
        """
        call = unseal(envelope, Call, self._server)
        if (call_digest := digest(envelope)) == self._last[0]:
            return self._last[1]
        try:
            result = self._result(call)
        except FedsieveError as error:
            result = Failure(self._client, str(error))
        except Exception as error:
            log.exception("a call failed")  # the owner's function for data, or a full disk
            result = Failure(self._client, f"{type(error).__name__}: {error}")
        sent = result if isinstance(result, Ready | UnknownJob) else encode(result)
        answer = seal(Answer(call_digest, self._client, sent), self._key)
        is_kept = isinstance(result, Reply | Observed) and len(answer) < _KEPT_BYTES
        self._last = (call_digest, answer) if is_kept else (b"", b"")
        return answer

    def _result(self, call: Call) -> Ready | UnknownJob | Response:
        if not re.fullmatch("[0-9a-f]{32}", call.job):
            raise WireError(f"job {call.job[:40]!r} is not 32 hexadecimal digits.")
        folder = self._folder / "jobs" / call.job
        if isinstance(call.work, Hello):
            self._greet(call.job, call.work, folder)
            log.info("asked to take part in job %s", call.job)
            return Ready()
        if isinstance(call.work, Refused):
            log.warning("the server does not take this node: %s", call.work.text)
            return Ready()
        if call.client != self._client:
            raise WireError(f"the call is for client {call.client}, this is {self._client}.")
        if not (folder / "config.toml").exists():
            return UnknownJob()
        memory = _read(folder / "memory.msgpack", Memory, Memory())
        if (call.session, call.round) < memory.newest:
            raise WireError(f"round {call.round} is over: {memory.newest[1]} has been answered.")
        if call.job != self._taken:
            log.info("takes part in job %s", call.job)
            self._taken = call.job
        work = self._opened(call.job, folder)
        request = REQUESTS.decode(call.work, Kinds(Receipt, work.server_kind))
        work.runtime.learn(memory.schemas)
        held = {number: Packed(bits, size) for number, bits, size in memory.masks}
        response = work.runtime.handle(self._filled(request, work, held))
        if isinstance(request, Train | Observe):
            if isinstance(response, Reply | Observed):
                self._keep(request.state.version, call.round, work, response)
            kept = subset(held, request.masks)
            kept |= remember({}, work.runtime.masks) if isinstance(response, Reply) else {}
            masks = tuple((number, *packed) for number, packed in kept.items())
            after = Memory((call.session, call.round), work.runtime.schemas, masks)
            disk.write(folder / "memory.msgpack", msgspec.msgpack.encode(after))
            log.info("round %d: %s", call.round, type(response).__name__.lower())
        return _without_own(response, call.round)

    def _greet(self, job: str, hello: Hello, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            folder / "form.msgpack": msgspec.msgpack.encode(hello.form),
            folder / "config.toml": hello.config.encode(),
        }
        if not all(path.exists() and path.read_bytes() == data for path, data in files.items()):
            for path, data in files.items():
                disk.write(path, data)
            self._work.pop(job, None)
        self._opened(job, folder)

    def _opened(self, job: str, folder: Path) -> _Work:
        if job not in self._work:
            form = msgspec.msgpack.decode((folder / "form.msgpack").read_bytes(), type=_Form)
            opened = self._open_job(Hello((folder / "config.toml").read_text(), form))
            runtime = ClientRuntime(opened.method, opened.federation, opened.wire, opened.seed)
            key = fold(opened.seed, "init")
            init = partial(opened.method.init_client, key=key)
            stores = open_stores(folder, init, _RAM_BYTES)
            kind = type(opened.method.init_server(key))
            self._work = {job: _Work(opened, runtime, stores, kind)}  # one job is in memory
        return self._work[job]

    def _state(self, work: _Work, version: int) -> tuple[Any, Params]:
        """The client's state and residual as of a round."""
        versions = {self._client: version} if version else {}
        for store in work.kept:
            store.restore(versions)
        return work.stores.states.get(self._client), work.stores.residuals.get(self._client)

    def _filled(self, request: Request, work: _Work, held: MaskTable) -> Request:
        """The request with the state, residual and masks that are kept here."""
        if isinstance(request, Train | Observe | EvaluateOwn):
            state, residual = self._state(work, request.state.version)
            request = request._replace(state=state)
            if isinstance(request, Train | Observe):
                request = request._replace(masks=subset(held, request.masks))
            if isinstance(request, Train):
                request = request._replace(residual=residual)
        return request

    def _keep(self, version: int, number: int, work: _Work, after: Reply | Observed) -> None:
        """Write the new version; the one it came from stays until the server names another."""
        states, residuals = work.stores
        states.put(self._client, after.state, number)
        left = after.residual if isinstance(after, Reply) else residuals.get(self._client)
        residuals.put(self._client, left, number)
        for store in work.kept:
            store.flush()
            store.forget_all_but([{self._client: version}] if version else [])


_Form = tuple[str, str, tuple[int, ...], int]


def _without_own(response: Response, number: int) -> Response:
    """The response without what stays here: state, residual and traces, which may show data."""
    if isinstance(response, Reply | Observed):
        of_state = bytes.fromhex(tree.digest(response.state))
        receipt = Receipt(number, torch.tensor(list(of_state), dtype=torch.uint8))
        response = response._replace(state=receipt)
    if isinstance(response, Reply):
        response = response._replace(residual={})
    if isinstance(response, Failure):
        log.warning("%s\n%s", response.error, response.trace)
        response = response._replace(trace="")
    return response


def _read(path: Path, kind: Any, default: Any) -> Any:
    return msgspec.msgpack.decode(path.read_bytes(), type=kind) if path.exists() else default
