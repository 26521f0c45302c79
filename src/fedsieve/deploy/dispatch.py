"""The remote executor: requests become calls to nodes, and answers responses.

All calls of an exchange go out together and answers are taken as they come, until the time is up.
Who has not answered then has failed; what it may still send is never asked for. Calls are safe to
repeat, so a transport that loses its connection makes a new one and the open calls go out again.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass

from fedsieve.core.errors import WireError
from fedsieve.deploy import MAX_MESSAGE_MB
from fedsieve.deploy.envelope import (
    Answer,
    Call,
    Hello,
    Ready,
    Refused,
    Result,
    UnknownJob,
    Work,
    digest,
    peek,
    seal,
    unseal,
)
from fedsieve.deploy.open_calls import RETURN_SECONDS, LostError, OpenCalls, Transport
from fedsieve.deploy.signature import Private, Public
from fedsieve.engine.request_encoding import RESPONSES, Encoded, Kinds, PackedOnce, encode
from fedsieve.engine.requests import (
    Evaluate,
    Failure,
    Observe,
    Request,
    Response,
    Train,
    check_answer,
    for_node,
    who,
)
from fedsieve.engine.store import Receipt

log = logging.getLogger("fedsieve")
_GREETING_SECONDS = 60.0
_AGAIN_SECONDS = 60.0
_MANY_MISSED = 3
_HELLO_SECONDS = 3600.0  # a greeting is valid while a node loads its data


@dataclass(frozen=True, kw_only=True)
class RemoteJob:
    """A job as it runs on nodes: description, limits and keys."""

    job: str
    session: int
    hello: Hello
    num_clients: int
    seconds: float = 600.0  # for an exchange
    max_bytes: int = MAX_MESSAGE_MB * 10**6
    poll_seconds: float = 0.1
    key: Private | None = None
    nodes: Mapping[int, Public] | None = None  # by client; None in a trial without keys


class Remote:
    """An executor whose clients are nodes on other machines."""

    def __init__(self, transport: Transport, terms: RemoteJob) -> None:
        self._transport, self._terms = transport, terms
        self._node: dict[int, int] = {}  # by client
        self._greeted: dict[str, int] = {}  # nodes that owe an answer to a greeting, by message
        self._greeted_at: dict[int, float] = {}  # and when each was last greeted
        self._since: dict[int, str] = {}  # nodes that are connected, and since when
        self._refused: dict[int, float] = {}  # nodes that are no use, and when they said so
        self._silent: set[int] = set()  # clients that owe an answer
        self._away: dict[int, float] = {}  # clients that were there, and since when they are not
        self._missed: Counter[int] = Counter()  # rounds in a row without one
        self._round = self.first_round = 0
        self._packed: PackedOnce = {}
        self.envelope_bytes: Counter[str] = Counter()

    def __call__(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        works = {who(part): part for request in requests for part in _parts(request)}
        numbers = [r.round for r in works.values() if isinstance(r, Train | Observe)]
        self._round = max(numbers, default=self._round)
        self.first_round = self.first_round or self._round
        owing = {c for c in self._silent if not isinstance(works.get(c), Train | Observe)}
        while works:
            self.greet(works, min(self._terms.seconds, _GREETING_SECONDS))
            for client in [c for c in works if c not in self._node or c in owing]:
                del works[client]
                is_here = client in self._node
                why = "it still owes an answer" if is_here else "no node is connected for it"
                yield Failure(client, why)
            try:
                for client, response in self._exchange(dict(works)):
                    del works[client]
                    yield response
            except LostError as lost:  # no node's fault: all have the whole time again
                log.warning("%s; open calls go out again", lost)

    def close(self) -> None:
        """Nothing to close: the transport is its maker's."""

    def greet(self, needed: Collection[int], seconds: float) -> list[int]:
        """Make the job known to new nodes until all `needed` clients are there, or time is up.

        A node that needs longer to load its data is heard the next time, one that does not answer
        for a minute is greeted again: a node that falls out of a run may lose a message.

        Returns:
            The clients that have a node.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                online, now = self._transport.nodes(), time.monotonic()
            except LostError:
                self._greeted.clear()
                self._greeted_at.clear()
                continue
            self._node = {c: node for c, node in self._node.items() if node in online}
            for node in [n for n, when in online.items() if self._since.get(n) != when]:
                self._greeted_at.pop(node, None)  # started again: what it was told is forgotten
                self._refused.pop(node, None)
            self._since = dict(online)
            tired = {node for node, when in self._refused.items() if now - when < _AGAIN_SECONDS}
            strangers = set(online) - set(self._node.values()) - tired
            may_change = self._may_return(needed, now) or bool(strangers)
            if not may_change or now > end or all(client in self._node for client in needed):
                return sorted(self._node)
            self._greet_new(strangers)
            time.sleep(self._terms.poll_seconds)

    def _may_return(self, needed: Collection[int], now: float) -> bool:
        """Whether a client that was there has been away for a moment only."""
        self._away |= dict.fromkeys(self._node, math.inf)
        missing = [c for c in needed if c in self._away and c not in self._node]
        for client in missing:
            self._away[client] = min(self._away[client], now)
        return any(now - self._away[client] < RETURN_SECONDS for client in missing)

    def _greet_new(self, strangers: set[int]) -> None:
        """Greet nodes that were not greeted lately, and read their answers."""
        envelope = self._sealed(self._terms.hello)
        now = time.monotonic()
        recent = {n for n, when in self._greeted_at.items() if now - when < _AGAIN_SECONDS}
        fresh = sorted(strangers - recent)
        self._greeted_at |= dict.fromkeys(fresh, now)
        try:
            if fresh:
                envelopes = dict.fromkeys(fresh, envelope)
                self._greeted |= self._transport.push(envelopes, _HELLO_SECONDS)
                self.envelope_bytes["down"] += len(envelope) * len(fresh)
            arrived = self._transport.pull(list(self._greeted)) if self._greeted else []
        except LostError:
            self._greeted.clear()
            self._greeted_at.clear()
            return
        for message, answered, error, _ in arrived:
            node = self._greeted.pop(message, None)
            if node is None:  # no message of ours
                continue
            self.envelope_bytes["up"] += len(answered)
            answer = error or self._opened(node, answered, digest(envelope))
            if isinstance(answer, Answer) and isinstance(answer.result, Ready):
                self._node[answer.client] = node
            else:
                self._refused[node] = time.monotonic()
                why = answer if isinstance(answer, str) else _decoded(-1, answer.result)[1]
                log.warning("node %d does not take part: %s", node, why)
                if isinstance(answer, str) and not error:
                    self._tell(node, answer)

    def _tell(self, node: int, why: str) -> None:
        """Let a node's operator know why it is not taken."""
        try:
            self._transport.push({node: self._sealed(Refused(why))}, _AGAIN_SECONDS)
        except LostError:
            log.debug("node %d was not told", node)

    def _exchange(self, works: dict[int, Request]) -> Generator[tuple[int, Response], None, None]:
        clients = {self._node[client]: client for client in works}
        envelopes = {
            node: self._sealed(encode(for_node(works[client]), self._packed), client)
            for node, client in clients.items()
        }
        self._silent |= works.keys()
        for node, answer in self._ask(envelopes, self._terms.seconds):
            client = clients[node]
            if isinstance(answer, str) or answer.client != client:
                why = answer if isinstance(answer, str) else "it is another client"
                self._miss(client, why)
                yield client, Failure(client, why)
                continue
            self._silent.discard(client)
            del self._missed[client]
            if isinstance(answer.result, UnknownJob):
                self._node.pop(client, None)  # greeted again before the next exchange
            yield client, response_of(works[client], self._round, answer.result)

    def _sealed(self, work: Work, client: int = -1) -> bytes:
        number = 0 if client < 0 else self._round
        call = Call(self._terms.job, self._terms.session, number, client, work)
        return seal(call, self._terms.key)

    def _miss(self, client: int, why: str) -> None:
        """Count answers that did not come; a client that owes several is greeted anew."""
        self._missed[client] += 1
        if self._missed[client] % _MANY_MISSED == 0:
            log.warning(
                "client %d has not answered %d times in a row (%s). It is greeted anew; if that "
                "does not help, look at the log of its `fedsieve node` and start it again, or give "
                "it more time with --round-timeout.",
                client,
                self._missed[client],
                why,
            )
            node = self._node.pop(client, None)
            self._greeted_at.pop(-1 if node is None else node, None)

    def _ask(
        self, envelopes: dict[int, bytes], seconds: float
    ) -> Generator[tuple[int, Answer | str], None, None]:
        """Every node with its answer or the reason why it has none, as they come."""
        digests = {node: digest(envelope) for node, envelope in envelopes.items()}
        left, calls = dict(envelopes), OpenCalls()
        end = time.monotonic() + seconds
        while left and (rest := end - time.monotonic()) > 0:
            calls.look(self._transport)
            unsent = {n: p for n, p in left.items() if calls.is_wanted(n)}
            if unsent:
                sent = self._transport.push(unsent, rest)
                calls.send(sent)
                self.envelope_bytes["down"] += sum(len(envelopes[n]) for n in sent.values())
            arrived = self._transport.pull(list(calls.waiting))
            for message, envelope, error, is_gone in arrived:
                node = calls.waiting.pop(message, None)
                if node is None or node not in left or (is_gone and calls.may_return(node)):
                    continue  # no message of ours, or one that goes out again
                del left[node]
                self.envelope_bytes["up"] += len(envelope)
                yield node, error or self._opened(node, envelope, digests[node])
            for node in [n for n in left if calls.is_given_up(n)]:
                del left[node]
                yield node, "it has disconnected"
            if left and not arrived:
                time.sleep(self._terms.poll_seconds)
        yield from ((node, f"no answer within {seconds:g} s") for node in left)

    def _opened(self, node: int, envelope: bytes, call: bytes) -> Answer | str:
        try:
            return self._verified(node, envelope, call)
        except WireError as error:
            return f"its message is not accepted: {error}"

    def _verified(self, node: int, envelope: bytes, call: bytes) -> Answer:
        """The answer in an envelope, verified: its sender, and that it answers this call."""
        if len(envelope) > self._terms.max_bytes:
            raise WireError(f"{len(envelope)} bytes, {self._terms.max_bytes} are allowed.")
        client = peek(envelope, Answer).client
        if not 0 <= client < self._terms.num_clients:
            raise WireError(f"there is no client {client}.")
        keys = self._terms.nodes
        if keys is not None and client not in keys:
            raise WireError(f"client {client} has no key here.")
        try:
            answer = unseal(envelope, Answer, None if keys is None else keys[client])
        except WireError as error:
            raise WireError(f"{error}{self._owner(envelope, client)}") from error
        if answer.call != call:
            raise WireError("it answers another call.")
        if self._node.get(client, node) != node:
            raise WireError(f"it speaks for client {client}, which is on another node.")
        return answer

    def _owner(self, envelope: bytes, client: int) -> str:
        """Whose key an envelope is signed with, if it is not that of the client it names."""
        for other, key in (self._terms.nodes or {}).items():
            try:
                unseal(envelope, Answer, key)
            except WireError:
                continue
            return (
                f" It says it is client {client}, and signs with the key of client {other}: start "
                f"it with --client-id {other}, or with the key whose public part is "
                f"nodes/{client}.pub at the server."
            )
        return ""


def _parts(request: Request) -> list[Request]:
    """The request for each client it concerns: an evaluation is one for every shard."""
    if isinstance(request, Evaluate):
        return [Evaluate(request.model, (shard,)) for shard in request.shards]
    return [request]


def response_of(request: Request, number: int, result: Result) -> Response:
    """The response in a node's answer to a request of round `number`."""
    response = _decoded(who(request), result)
    try:
        check_answer(request, response, number)
    except WireError as error:
        return Failure(who(request), f"its answer cannot be used: {error}")
    return response


def _decoded(client: int, result: Result) -> Response:
    """The response in an answer; a node may send anything, and what cannot be read is a failure."""
    if not isinstance(result, Encoded):
        return Failure(client, "its node does not know the job")
    try:
        return RESPONSES.decode(result, Kinds(Receipt))
    except Exception as error:  # noqa: BLE001 - whatever a node sends must not stop the run
        return Failure(client, f"its answer cannot be used: {error}")
