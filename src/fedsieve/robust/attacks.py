"""Clients that lie, to see what a rule of aggregation bears.

Lies are told by the method itself, in place of the honest reply of chosen clients, so that they
travel as any reply does. An attacker knows what it was sent, its data, and that of the others who
lie with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fedsieve.core import keys
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Natural, fields
from fedsieve.core.method import AnyMethod, Batch, Batches, Metrics, message_to
from fedsieve.core.options import in_range
from fedsieve.robust.updates import entries, moved, scaled


class _Data(Protocol):
    @property
    def num_clients(self) -> int: ...
    def batches(self, client: int) -> Batches: ...


@dataclass(frozen=True)
class Group:
    """Who lies: a share of all clients, drawn from the seed of the run."""

    seed: int
    rounds: int
    share: float
    data: _Data

    @cached_property
    def members(self) -> list[int]:
        """Clients that lie, ascending."""
        everyone = self.data.num_clients
        return keys.sample(fold(self.seed, "attackers"), everyone, round(self.share * everyone))

    @cached_property
    def by_key(self) -> Mapping[Key, int]:
        """The client whose key this is in some round, if it lies."""
        return {
            fold(self.seed, "client", number, client): client
            for number in range(1, self.rounds + 1)
            for client in self.members
        }


class Turn(NamedTuple):
    """The work an attacker is asked to do."""

    method: AnyMethod  # honest
    client: int
    down: Any
    state: Any
    data: Batches
    key: Key
    group: Group


Done: TypeAlias = tuple[Any, Any, Metrics]  # reply, state, figures, as of client_update


def _honest(turn: Turn) -> Done:
    return turn.method.client_update(turn.down, turn.state, turn.data, turn.key)


def _pretended(turn: Turn, up: Any) -> Done:
    """A reply of no honest work, with the state of it: own models of liars are not to be judged."""
    if turn.state == ():
        return up, (), Metrics(0, {})
    _, *rest = _honest(turn)
    return up, *rest


@dataclass(frozen=True)
class SignFlip:
    """The update `times` as long in the opposite direction."""

    times: float = 1.0

    def reply(self, turn: Turn) -> Done:
        up, *rest = _honest(turn)
        return scaled(up, turn.down, -self.times), *rest


@dataclass(frozen=True)
class Scale:
    """The update `times` as long."""

    times: float = 1000.0

    def reply(self, turn: Turn) -> Done:
        up, *rest = _honest(turn)
        return scaled(up, turn.down, self.times), *rest


@dataclass(frozen=True)
class Gaussian:
    """Noise of this deviation in place of the update."""

    deviation: float = 1.0

    def __post_init__(self) -> None:
        in_range("gaussian: deviation", self.deviation, 0)

    def reply(self, turn: Turn) -> Done:
        up, *rest = _honest(turn)
        key = fold(turn.key, "attack")

        noise = {
            (x.field, x.name): self.deviation
            * keys.normal(fold(key, x.field, x.name), x.value.shape)
            for x in entries(up, turn.down)
        }
        return moved(up, turn.down, lambda x: noise[x.field, x.name]), *rest


@dataclass(frozen=True)
class LabelFlip:
    """Honest work on false data: class c is said to be the last but c."""

    def reply(self, turn: Turn) -> Done:
        up, *_ = _honest(turn._replace(data=_Flipped(turn.data, _classes(turn.data))))
        return _pretended(turn, up)


@dataclass(frozen=True)
class CountLie:
    """The opposite of the update, said to rest on so many examples."""

    examples: int = 10**12

    def __post_init__(self) -> None:
        in_range("count_lie: examples", self.examples, 0, 2**63 - 1)

    def reply(self, turn: Turn) -> Done:
        up, *rest = SignFlip().reply(turn)
        claims = [n for n, r in fields(type(up)) if isinstance(r, Natural) and r.is_examples]
        return up._replace(**dict.fromkeys(claims, self.examples)), *rest


@dataclass(frozen=True)
class Replay:
    """The reply to the first broadcast of the run, again and again."""

    def reply(self, turn: Turn) -> Done:
        method, seed, client = turn.method, turn.group.seed, turn.client
        init = fold(seed, "init")
        sent = method.broadcast(method.init_server(init), fold(seed, "broadcast", 1))
        state, key = method.init_client(client, init), fold(seed, "client", 1, client)
        old, _, _ = method.client_update(message_to(client, sent), state, turn.data, key)
        return _pretended(turn, old)


@dataclass(frozen=True)
class Shift:
    """The attackers' mean, moved by so many deviations of theirs: just inside the spread.

    Baruch et al., "A Little Is Enough", NeurIPS 2019; by the text's rule for 20 clients with 4
    attackers, one deviation is about the most that a majority of honest clients hides.
    """

    deviations: float = 1.0

    def reply(self, turn: Turn) -> Done:
        up, *rest = _honest(turn)
        fellows = [
            _honest(turn._replace(data=turn.group.data.batches(c)))[0]
            for c in turn.group.members
            if c != turn.client
        ]
        each: dict[tuple[str, str], list[Tensor]] = {}
        for one in (up, *fellows):
            for x in entries(one, turn.down):
                each.setdefault((x.field, x.name), []).append(x.change)
        inside = {
            place: torch.stack(changes).mean(0)
            - self.deviations * torch.stack(changes).std(0, correction=0)
            for place, changes in each.items()
        }
        return moved(up, turn.down, lambda x: inside[x.field, x.name]), *rest


Attack: TypeAlias = SignFlip | Scale | Gaussian | LabelFlip | CountLie | Replay | Shift
ATTACKS: tuple[type[Attack], ...] = (SignFlip, Scale, Gaussian, LabelFlip, CountLie, Replay, Shift)


def attacked(method: AnyMethod, attack: Attack, group: Group) -> AnyMethod:
    """The method in the hands of clients of which a group lies."""

    def client_update(_: AnyMethod, down: Any, state: Any, data: Batches, key: Key) -> Done:
        client = group.by_key.get(key)
        if client is None:
            return method.client_update(down, state, data, key)
        return attack.reply(Turn(method, client, down, state, data, key, group))

    name, bases = f"Attacked{type(method).__name__}", (type(method),)
    lying: AnyMethod = object.__new__(type(name, bases, {"client_update": client_update}))
    lying.__dict__.update(method.__dict__)
    return lying


def _classes(data: Batches) -> int:
    return 1 + max(int(batch.y.max()) for batch in data.ordered())


class _Flipped:
    """A client's data with false labels."""

    def __init__(self, data: Batches, classes: int) -> None:
        self._data, self._classes = data, classes

    @property
    def examples(self) -> int:
        return self._data.examples

    @property
    def epochs(self) -> int:
        return self._data.epochs

    @property
    def steps(self) -> int:
        return self._data.steps

    def epoch(self, key: Key) -> Iterator[Batch]:
        return map(self._flip, self._data.epoch(key))

    def work(self, key: Key) -> Iterator[Batch]:
        return map(self._flip, self._data.work(key))

    def draw(self, key: Key) -> Batch:
        return self._flip(self._data.draw(key))

    def ordered(self) -> Iterator[Batch]:
        return map(self._flip, self._data.ordered())

    def split(self, share: float) -> tuple[Batches, Batches]:
        training, validation = self._data.split(share)
        return type(self)(training, self._classes), type(self)(validation, self._classes)

    def _flip(self, batch: Batch) -> Batch:
        return Batch(batch.x, self._classes - 1 - batch.y)
