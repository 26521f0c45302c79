"""The one round loop: broadcast, train, collect, update, evaluate. Only executors differ."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from typing import Any, NamedTuple

from fedsieve.core import tree
from fedsieve.core.errors import RoundError, WireError
from fedsieve.core.keys import fold
from fedsieve.core.method import AnyMethod, Round, message_types
from fedsieve.data.federation import Federation
from fedsieve.engine.broadcast import (
    BroadcastEncoder,
    ClientCache,
    ClientCaches,
    EncodedBroadcast,
    bound_of,
    dense_schema,
    frames_of,
    held_at_start,
    sent,
)
from fedsieve.engine.budget import RoundBudget
from fedsieve.engine.evaluate import Scores, evaluate, shares_of_cohort
from fedsieve.engine.mask_cache import MaskTable, recall, remember, subset
from fedsieve.engine.metrics import Accepted, Exchange, load_of, round_metrics
from fedsieve.engine.requests import (
    Executor,
    Failure,
    Observe,
    Observed,
    Refusal,
    Reply,
    Response,
    Train,
)
from fedsieve.engine.round_settings import RoundSettings
from fedsieve.engine.store import Stores
from fedsieve.engine.trust import (
    believed,
    check_update,
    claimed_examples,
    needs_broadcasts,
    unlike_others,
    wrong_claim,
)
from fedsieve.metrics.bytes import Sent
from fedsieve.metrics.rows import Evaluation, Row
from fedsieve.wire.codec import Decoder, UnheldError, masks_of
from fedsieve.wire.compressors import EXACT, Compression
from fedsieve.wire.inspect import Frame
from fedsieve.wire.schema import Hash, schema_of
from fedsieve.wire.versions import change_of

log = logging.getLogger("fedsieve")


class Checkpoint(NamedTuple):
    """All that a run has reached, but for client states, which live in the stores."""

    done: int
    server: Any
    caches: ClientCaches
    schemas: tuple[bytes, ...]  # of clients' messages, as the server has been told
    masks: MaskTable  # that caches refer to
    seen: frozenset[int] = frozenset()  # clients that have trained
    examples: dict[int, int] = {}  # noqa: RUF012 - never changed; what clients said they have


class RoundResult(NamedTuple):
    """One finished round."""

    position: Checkpoint
    row: Row
    evaluation: Evaluation | None
    messages: list[Sent]
    frames: list[Frame]  # of rounds to be kept


class Tried(NamedTuple):
    """One try at an exchange; those who refused may be tried again."""

    accepted: list[Accepted]
    failures: list[Failure]
    refused: list[int]
    messages: list[Sent]


class Rounds:
    """A method on a federation, ready to run from a position."""

    def __init__(
        self,
        method: AnyMethod,
        federation: Federation,
        plan: RoundSettings,
        stores: Stores,
        execute: Executor,
        on_reply: Callable[[int, int], None] | None = None,
    ) -> None:
        self.method, self.federation, self.plan = method, federation, plan
        self.stores, self.execute, self._on_reply = stores, execute, on_reply
        self._down_kind, self._up_kind = message_types(method)
        self._decoder = Decoder()
        self._dense = cache(lambda: dense_schema(method, fold(plan.seed, "init")))
        self._compares = needs_broadcasts(plan)
        self._warned: set[tuple[int, str]] = set()  # clients left out, and why
        self._start = cache(lambda: held_at_start(method, plan.seed, plan.down))
        self._budget = RoundBudget(plan.round_bytes, plan.cohort)

    def start(self) -> Checkpoint:
        """The position before the first round."""
        return Checkpoint(0, self.method.init_server(fold(self.plan.seed, "init")), {}, (), {})

    def play(self, position: Checkpoint) -> Iterator[RoundResult]:
        """Run round after round; each is complete when it is yielded.

        Raises:
            RoundError: fewer than `min_replies` clients gave a usable answer, or more replies
                failed than were usable, or an update blew the model up.
        """
        for packed in position.schemas:
            self._decoder.learn(packed)
        while position.done < self.plan.rounds:
            played = self._round(position)
            yield played
            position = played.position

    def _round(self, position: Checkpoint) -> RoundResult:
        started = time.perf_counter()
        number, caches, masks = position.done + 1, dict(position.caches), position.masks
        cohort, spare, reaches_all = self.plan.select(
            self.method, position.done, self.federation.num_clients
        )
        known = {client: caches.get(client, ClientCache()) for client in cohort}
        encoder, broadcasts = self._broadcasts(position, known)
        exchange = self._exchange(position, broadcasts, encoder, spare)
        accepted, messages = exchange.accepted, exchange.messages
        self._budget.compare(number, sum(m.total_bytes for m in messages))
        downs = [encoder.message(a.reply.client) for a in accepted] if self._compares else []
        ups = believed(self.plan, [a.up for a in accepted], downs)
        played = Round(ups, encoder.arrived, load_of(len(cohort), messages))
        key = fold(self.plan.seed, "server", number)
        server = self.method.server_update(position.server, played, key)
        check_update(position.server, server, accepted, number)
        for reply, up in accepted:
            encoded, before = broadcasts[reply.client], caches.get(reply.client, ClientCache())
            told = {schema_of(up)[1]} if reply.up.data else set[Hash]()
            held = encoded.masks | (masks_of(up) if reply.up.data else {})
            if self.plan.keeps_changes and reply.up.data:
                held = held | change_of(up, encoder.arrived(reply.client))
            caches[reply.client] = before.told(encoded.digest, told)._replace(masks=tuple(held))
            masks = remember(masks, held) if held else masks
            self.stores.states.put(reply.client, reply.state, number)
            if reply.residual:
                self.stores.residuals.put(reply.client, reply.residual, number)
        if reaches_all:
            self._observe(position, encoder, set(cohort), caches, exchange)
        schemas = tuple(schema.packed() for schema in self._decoder.schemas.values())
        seen = position.seen | {a.reply.client for a in accepted}
        scores = Scores(None, None, None)
        if number % self.plan.eval_every == 0 or number == self.plan.rounds:
            store = self.stores.states
            scores = evaluate(self.method, server, store, self.federation, self.execute, seen)
        states = {a.reply.client: a.reply.state for a in accepted}
        models = shares_of_cohort(self.method, server, states, scores, self.execute)
        seconds = time.perf_counter() - started
        figures = self.method.report(server).figures
        row, evaluation = round_metrics(exchange, scores, models, figures, number, seconds)
        frames = []
        if number in self.plan.kept_rounds:
            for reply, up in accepted:
                encoded, client_cache = (
                    broadcasts[reply.client],
                    position.caches.get(reply.client, ClientCache()),
                )
                held = {**self._start(), **recall(position.masks, client_cache.masks)}
                frames += frames_of(number, reply, up, encoded, held)
        said = {a.reply.client: n for a in accepted if (n := claimed_examples(a.up)) is not None}
        after = Checkpoint(number, server, caches, schemas, masks, seen, position.examples | said)
        return RoundResult(after, row, evaluation, messages, frames)

    def _broadcasts(
        self, position: Checkpoint, known: ClientCaches
    ) -> tuple[BroadcastEncoder, dict[int, EncodedBroadcast]]:
        """The broadcast to every client of a cohort, within the target of the round if it can."""
        key = fold(self.plan.seed, "broadcast", position.done + 1)

        def made(down: Compression) -> tuple[BroadcastEncoder, dict[int, EncodedBroadcast]]:
            encoder = BroadcastEncoder(
                self.method,
                position.server,
                key,
                down,
                position.masks,
                known.values(),
                self._start(),
            )
            return encoder, {c: encoder.encoded(c, held) for c, held in known.items()}

        def size(tried: tuple[BroadcastEncoder, dict[int, EncodedBroadcast]]) -> int:
            return sum(len(encoded.payload.data) for encoded in tried[1].values())

        return self._budget.broadcasts(made, size, self.plan.down)

    def _exchange(
        self,
        position: Checkpoint,
        broadcasts: dict[int, EncodedBroadcast],
        encoder: BroadcastEncoder,
        spare: int,
    ) -> Exchange:
        """Let the cohort work, largest client first; usable replies come sorted by client."""
        order = sorted(broadcasts, key=self.federation.examples, reverse=True)
        needed = len(broadcasts) - spare
        first = self._try(
            position,
            {client: broadcasts[client] for client in order},
            position.caches,
            needed,
            encoder,
        )
        # Whoever does not hold what a message refers to gets, or gives, a whole one.
        whole = {c: encoder.encoded(c, ClientCache(), has_start=False) for c in first.refused}
        needed -= len(first.accepted)
        second = self._try(position, whole, {}, needed, encoder) if whole and needed else _NOTHING
        accepted, failures = first.accepted + second.accepted, first.failures + second.failures
        failures += [Failure(client, "it refused a whole message") for client in second.refused]
        if self.method.same_entries:
            strangers = unlike_others(accepted, self._down_kind)
            failures += strangers
            left_out = {f.client for f in strangers}
            accepted = [a for a in accepted if a.reply.client not in left_out]
        for failure in failures:
            is_known = failure[:2] in self._warned
            self._warned.add(failure[:2])
            level = logging.INFO if is_known else logging.WARNING
            log.log(level, "round %d: client %d left out: %s", position.done + 1, *failure[:2])
        self._refuse_too_few(position.done + 1, len(broadcasts), len(accepted), failures)
        accepted.sort(key=lambda a: a.reply.client)
        heard = {a.reply.client for a in accepted} | {f.client for f in failures}
        late = [client for client in broadcasts if client not in heard]
        return Exchange(accepted, failures, first.messages + second.messages, spare, late)

    def _refuse_too_few(
        self, number: int, asked: int, usable: int, failures: list[Failure]
    ) -> None:
        least = self.plan.min_replies
        if usable >= (max(len(failures), 1) if least is None else max(least, 1)):
            return
        rule = f"min_replies={least}" if least else "and more must be usable than fail"
        why = "".join(f"Client {f.client}: {f.error}\n{f.trace}" for f in failures[:1])
        raise RoundError(
            f"round {number}: {usable} of {asked} clients gave a usable answer, {rule}. "
            f"All rounds before are kept. {why}".rstrip()
        )

    def _examples(self, position: Checkpoint, client: int) -> int | None:
        """How many examples a client is known to have: by the data here, or its first reply."""
        if self.plan.holds_data:
            return self.federation.examples(client)
        return position.examples.get(client)

    def _try(
        self,
        position: Checkpoint,
        broadcasts: dict[int, EncodedBroadcast],
        caches: ClientCaches,
        needed: int,
        encoder: BroadcastEncoder,
    ) -> Tried:
        """Ask for the work of `broadcasts`; the first `needed` usable replies are taken."""
        number, tried = position.done + 1, Tried([], [], [], [])
        lost, late = self.plan.recorded(number)
        held = frozenset(self._decoder.schemas)  # before any reply: the same for every executor
        budget = self._budget.of_reply([len(e.payload.data) for e in broadcasts.values()])
        requests = (
            self._request(
                position, client, encoded, caches.get(client, ClientCache()), held, budget
            )
            for client, encoded in broadcasts.items()
            if client not in lost | late
        )
        for client, encoded in broadcasts.items():
            line = sent(number, client, "down", encoded.payload, encoded.paper_bytes)
            tried.messages.append(line)
        tried.failures.extend(
            Failure(c, "it failed in the record") for c in broadcasts if c in lost
        )
        with closing(self.execute(requests)) as responses:
            for count, response in enumerate(responses, 1):
                if self._on_reply is not None:
                    self._on_reply(count, len(broadcasts))
                match self._read(response, position, broadcasts, caches, encoder):
                    case Accepted() as usable:
                        tried.accepted.append(usable)
                    case Refusal(client):
                        tried.refused.append(client)
                    case Failure() as failure:
                        tried.failures.append(failure)
                if isinstance(response, Reply):
                    line = sent(number, response.client, "up", response.up, response.paper_bytes)
                    tried.messages.append(line)
                if len(tried.accepted) == needed:
                    break
        tried.messages.sort(key=lambda m: (m.direction, m.client))
        return tried

    def _request(
        self,
        position: Checkpoint,
        client: int,
        encoded: EncodedBroadcast,
        client_cache: ClientCache,
        held: frozenset[Hash],
        budget: int,
    ) -> Train:
        return Train(
            client,
            encoded.payload.data,
            encoded.schema if encoded.is_told else b"",
            held.intersection(client_cache.up),
            subset(position.masks, client_cache.masks),
            self.stores.states.get(client),
            self.stores.residuals.get(client),
            fold(self.plan.seed, "client", position.done + 1, client),
            position.done + 1,
            budget,
        )

    def _read(
        self,
        reply: Response,
        position: Checkpoint,
        broadcasts: dict[int, EncodedBroadcast],
        caches: ClientCaches,
        encoder: BroadcastEncoder,
    ) -> Accepted | Refusal | Failure:
        if not isinstance(reply, Reply):
            return reply if isinstance(reply, Refusal | Failure) else Failure(-1, "no reply")
        client_cache = caches.get(reply.client, ClientCache())
        encoded = broadcasts[reply.client]
        held = encoded.masks | recall(position.masks, client_cache.masks)
        bound = bound_of(encoded, self._up_kind, self._dense, self.plan.up)
        try:
            base = None if self.plan.up == EXACT else encoder.arrived(reply.client)
            up = self._decoder.decode(
                reply.up.data, self._up_kind, held, bound, encoded.contexts, base
            )
        except UnheldError as error:
            return Refusal(reply.client, str(error))
        except WireError as error:
            return Failure(reply.client, f"its message cannot be read: {error}")
        if difference := wrong_claim(up, reply.client, self._examples(position, reply.client)):
            return Failure(reply.client, f"its message does not fit: {difference}")
        if not tree.is_finite(up):
            return Failure(reply.client, "its message has non-finite values")
        return Accepted(reply, up)

    def _observe(
        self,
        position: Checkpoint,
        encoder: BroadcastEncoder,
        cohort: set[int],
        caches: ClientCaches,
        exchange: Exchange,
    ) -> None:
        """Deliver the broadcast to everyone else; its bytes count."""
        number = position.done + 1
        others = [c for c in range(self.federation.num_clients) if c not in cohort]
        broadcasts = {
            client: encoder.encoded(client, caches.get(client, ClientCache())) for client in others
        }
        lost, _ = self.plan.recorded(number)
        requests = (
            Observe(
                client,
                encoded.payload.data,
                encoded.schema if encoded.is_told else b"",
                subset(position.masks, caches.get(client, ClientCache()).masks),
                self.stores.states.get(client),
                number,
            )
            for client, encoded in broadcasts.items()
            if client not in lost
        )
        heard = dict[int, Any]()
        for response in self.execute(requests):
            match response:
                case Observed(client, state):
                    heard[client] = state
                case Refusal(client):
                    caches.pop(client, None)  # so that its next message is a whole one
        for client, encoded in broadcasts.items():
            line = sent(number, client, "down", encoded.payload, encoded.paper_bytes)
            exchange.messages.append(line)
            if client not in heard:
                exchange.failures.append(Failure(client, "it did not observe"))
                continue
            client_cache = caches.get(client, ClientCache())
            caches[client] = client_cache.told(encoded.digest)
            self.stores.states.put(client, heard[client], number)


_NOTHING = Tried([], [], [], [])
