"""The one round loop: broadcast, train, collect, update, evaluate. Only executors differ."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedsieve.core import keys, tree
from fedsieve.core.errors import ConfigError, RoundError, WireError
from fedsieve.core.keys import fold
from fedsieve.core.method import AnyMethod, Method, message_types
from fedsieve.data.federation import Federation
from fedsieve.engines.evaluate import Scores, evaluate
from fedsieve.engines.post import Letter, Link, Links, Post, sent
from fedsieve.engines.site import Executor, Failure, Reply, Response, Train
from fedsieve.engines.store import ClientStore
from fedsieve.ledger.bytes import Sent, total
from fedsieve.ledger.flops import density
from fedsieve.ledger.rows import Row
from fedsieve.wire.codec import Decoder
from fedsieve.wire.schema import schema_of

log = logging.getLogger("fedsieve")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers of a job that the loop needs."""

    seed: int
    rounds: int
    cohort: int
    eval_every: int
    min_replies: int


class Position(NamedTuple):
    """All that a run has reached, but for client states, which live in the store."""

    done: int
    server: Any
    links: Links
    schemas: tuple[bytes, ...]  # of clients' messages, as the server has been told


class Played(NamedTuple):
    """One finished round."""

    position: Position
    row: Row
    messages: list[Sent]


class Accepted(NamedTuple):
    """A reply whose message could be read."""

    reply: Reply
    up: Any


class Rounds:
    """A method on a federation, ready to run from a position."""

    def __init__(
        self,
        method: AnyMethod,
        federation: Federation,
        plan: Plan,
        store: ClientStore,
        execute: Executor,
        on_reply: Callable[[int, int], None] | None = None,
    ) -> None:
        self.method, self.federation, self.plan = method, federation, plan
        self.store, self.execute, self._on_reply = store, execute, on_reply
        self._down_kind, self._up_kind = message_types(method)
        self._decoder = Decoder()
        self._has_observers = type(method).observe is not Method.observe

    def start(self) -> Position:
        """The position before the first round."""
        return Position(0, self.method.init_server(fold(self.plan.seed, "init")), {}, ())

    def play(self, position: Position) -> Iterator[Played]:
        """Run round after round; each is complete when it is yielded.

        Raises:
            RoundError: fewer than `min_replies` clients gave a usable answer.
        """
        for packed in position.schemas:
            self._decoder.learn(packed)
        while position.done < self.plan.rounds:
            played = self._round(position)
            yield played
            position = played.position

    def _round(self, position: Position) -> Played:
        started = time.perf_counter()
        number, links = position.done + 1, dict(position.links)
        cohort = self._cohort(position)
        post = Post(self.method, position.server, fold(self.plan.seed, "broadcast", number))
        letters = {client: post.letter(client, links.get(client, Link())) for client in cohort}
        accepted, failures = self._exchange(number, letters, links)
        ups = [a.up for a in accepted]
        server = self.method.server_update(
            position.server, ups, fold(self.plan.seed, "server", number)
        )
        for reply, up in accepted:
            before = links.get(reply.client, Link())
            mark = {schema_of(up)[1]} if reply.up.data else set[int]()
            links[reply.client] = Link(before.down | letters[reply.client].mark, before.up | mark)
            self.store.put(reply.client, reply.state, number)
        messages = [
            sent(number, c, "down", x.payload, x.paper_bytes) for c, x in letters.items()
        ] + [sent(number, r.client, "up", r.up, r.paper_bytes) for r, _ in accepted]
        if self._has_observers:
            messages += self._observe(number, post, set(cohort), links)
        row = self._row(number, started, server, accepted, failures, messages)
        schemas = tuple(schema.packed() for schema in self._decoder.schemas.values())
        return Played(Position(number, server, links, schemas), row, messages)

    def _cohort(self, position: Position) -> list[int]:
        size, draw = self.method.cohort(position.server, self.plan.cohort, position.done)
        clients = self.federation.num_clients
        if not 1 <= size <= clients:
            raise ConfigError(
                f"the method asks for a cohort of {size}, there are {clients} clients."
            )
        return keys.sample(fold(self.plan.seed, "cohort", draw), clients, size)

    def _exchange(
        self, number: int, letters: dict[int, Letter], links: Links
    ) -> tuple[list[Accepted], list[Failure]]:
        """Let the cohort work, largest client first; returns usable replies sorted by client."""
        order = sorted(letters, key=self.federation.examples, reverse=True)
        requests = [
            Train(
                client,
                letters[client].payload.data,
                letters[client].schema,
                links.get(client, Link()).up,
                self.store.get(client),
                fold(self.plan.seed, "client", number, client),
            )
            for client in order
        ]
        accepted, failures = [], []
        for count, response in enumerate(self.execute(requests), 1):
            if self._on_reply is not None:
                self._on_reply(count, len(requests))
            match self._accept(response):
                case Accepted() as usable:
                    accepted.append(usable)
                case failure:
                    log.warning("round %d: client %d left out: %s", number, *failure[:2])
                    failures.append(failure)
        if len(accepted) < max(self.plan.min_replies, 1):
            first = failures[0]
            raise RoundError(
                f"round {number}: {len(accepted)} of {len(requests)} clients gave a usable answer, "
                f"min_replies={self.plan.min_replies}. All rounds before are kept. "
                f"Client {first.client}: {first.error}\n{first.trace}".rstrip()
            )
        return sorted(accepted, key=lambda a: a.reply.client), failures

    def _accept(self, response: Response) -> Accepted | Failure:
        if not isinstance(response, Reply):
            return Failure(*response) if isinstance(response, Failure) else Failure(-1, "no reply")
        try:
            up = self._decoder.decode(response.up.data, self._up_kind)
        except WireError as error:
            return Failure(response.client, f"its message cannot be read: {error}")
        if not tree.is_finite(up):
            return Failure(response.client, "its message has non-finite values")
        return Accepted(response, up)

    def _observe(self, number: int, post: Post, cohort: set[int], links: Links) -> list[Sent]:
        """Deliver the broadcast to everyone else; its bytes count."""
        messages = []
        for client in range(self.federation.num_clients):
            if client in cohort:
                continue
            link = links.get(client, Link())
            letter = post.letter(client, link)
            if letter.schema:
                self._decoder.learn(letter.schema)
            down = self._decoder.decode(letter.payload.data, self._down_kind)
            self.store.put(client, self.method.observe(down, self.store.get(client)), number)
            links[client] = link._replace(down=link.down | letter.mark)
            messages.append(sent(number, client, "down", letter.payload, letter.paper_bytes))
        return messages

    def _row(
        self,
        number: int,
        started: float,
        server: Any,
        accepted: list[Accepted],
        failures: list[Failure],
        messages: list[Sent],
    ) -> Row:
        is_due = number % self.plan.eval_every == 0 or number == self.plan.rounds
        scores = Scores(None, None, None)
        if is_due:
            scores = evaluate(self.method, server, self.store, self.federation, self.execute)
        up, down = total(messages, "up"), total(messages, "down")
        flops = [a.reply.flops for a in accepted]
        return Row(
            round=number,
            seconds=time.perf_counter() - started,
            clients=len(accepted),
            failed=len(failures),
            up_bytes=up.total_bytes,
            down_bytes=down.total_bytes,
            up_paper_bytes=up.paper_bytes,
            down_paper_bytes=down.paper_bytes,
            flops_dense=sum(f.dense for f in flops),
            flops_ideal=sum(f.ideal for f in flops),
            flops_realisable=sum(f.realisable for f in flops),
            density=self._density(server, accepted),
            values=_means([a.reply.values for a in accepted]),
            global_accuracy=scores.global_accuracy,
            local_accuracy=scores.local_accuracy,
            loss=scores.loss,
        )

    def _density(self, server: Any, accepted: list[Accepted]) -> float:
        """Share of non-zeros in the deployed model; for personal ones the mean over the cohort."""
        graph = self.method.task.graph
        states = [a.reply.state for a in accepted] if self.method.personal else [()]
        models = [self.method.deploy(server, state) for state in states]
        shares = [density(model, graph) for model in models if model is not None]
        return sum(shares) / len(shares) if shares else 1.0


def _means(values: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in values for name in one)
    return {n: sum(v[n] for v in values if n in v) / sum(n in v for v in values) for n in names}
