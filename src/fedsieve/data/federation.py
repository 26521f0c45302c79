"""The data of all clients, and each one's mini-batches, gathered only when they are asked for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import Literal

import torch
from torch import Tensor

from fedsieve.core import keys
from fedsieve.core.keys import Key, fold
from fedsieve.core.method import Batch
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.data.partitions.partition import Partition

_LARGE_BATCH = 512
_GATHERED_VALUES = 2**15


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set dealt among clients, and how local work is cut into mini-batches.

    Attributes:
        epochs: passes over a client's data in one round of local work.
        steps: if given, the number of mini-batches of one round in place of `epochs`.
        drop_last: leave out an epoch's short last mini-batch, unless it is the only one.
        score_on: the shards models are scored on; tuning must not see test data.
    """

    dataset: Dataset
    partition: Partition
    batch_size: int
    epochs: int
    steps: int | None = None
    drop_last: bool = False
    score_on: Literal["test", "validation"] = "test"

    def __post_init__(self) -> None:
        in_range("batch_size", self.batch_size, 1)
        in_range("epochs", self.epochs, 1)
        if self.steps is not None:
            in_range("steps", self.steps, 1)

    @property
    def num_clients(self) -> int:
        """Clients that train."""
        return len(self._train)

    @property
    def num_shards(self) -> int:
        """Test (and validation) shards: one for each client of the partition."""
        return len(self.partition.test)

    @cached_property
    def test_union(self) -> Tensor:
        """All test examples that belong to a client, ascending."""
        return torch.cat(self.partition.test).sort().values

    def examples(self, client: int) -> int:
        """How many training examples a client holds."""
        return len(self._train[client])

    def test(self, shard: int) -> Tensor:
        """Test examples of one client of the partition."""
        return self.partition.test[shard]

    def validation(self, shard: int) -> Tensor:
        """Training examples held out for one client of the partition."""
        return self.partition.validation[shard]

    def batches(self, client: int) -> "ClientBatches":
        """The client's training data."""
        return ClientBatches(self, self._train[client])

    def test_batches(self, indices: Tensor, size: int = _LARGE_BATCH) -> Iterator[Batch]:
        """The given test examples in mini-batches."""
        for rows in _pieces(indices, size):
            x = self.dataset.x_test.index_select(0, rows)
            yield Batch(self.dataset.inputs(x), self.dataset.y_test.index_select(0, rows))

    def train_batches(self, indices: Tensor, size: int = _LARGE_BATCH) -> Iterator[Batch]:
        """The given training (or validation) examples in mini-batches.

        Several mini-batches are gathered at once: small ones cost more in calls than in copying.
        """
        values = max(math.prod(self.dataset.input_shape), 1)
        together = max(_GATHERED_VALUES // values // size, 1)
        for rows in indices.split(together * size):  # type: ignore[no-untyped-call]
            batch = self.gather(rows)
            if together == 1:
                yield batch
            else:
                yield from map(Batch, batch.x.split(size), batch.y.split(size))  # type: ignore[no-untyped-call]

    def scored_batches(self, shard: int) -> Iterator[Batch]:
        """What a model of this shard's client is scored on."""
        if self.score_on == "test":
            return self.test_batches(self.test(shard))
        return self.train_batches(self.validation(shard))

    def gather(self, rows: Tensor) -> Batch:
        """One mini-batch of the given training examples, as the model and the loss want it."""
        x = self.dataset.inputs(self.dataset.x.index_select(0, rows))
        if self.partition.shift is not None:
            x = x + self.partition.shift.index_select(0, self._client_of.index_select(0, rows))
        return Batch(x, self._targets.index_select(0, rows))

    @cached_property
    def _train(self) -> tuple[Tensor, ...]:
        return self.partition.held

    @cached_property
    def _client_of(self) -> Tensor:
        client_of = torch.zeros(len(self.dataset.x), dtype=torch.int64)
        for shards in (self.partition.train, self.partition.validation):
            for client, rows in enumerate(shards):
                client_of[rows] = client
        return client_of

    @cached_property
    def _targets(self) -> Tensor:
        """Targets; those of a planted truth follow the shift of the inputs."""
        truth, scores, shift = self.dataset.truth, self.dataset.scores, self.partition.shift
        if truth is None or scores is None or shift is None:
            return self.dataset.y
        return self.dataset.label(scores + (shift @ truth).index_select(0, self._client_of))


@dataclass(frozen=True, eq=False)
class ClientBatches:
    """One client's training data; implements the protocol `Batches` of the methods."""

    federation: Federation
    indices: Tensor

    @property
    def examples(self) -> int:
        return len(self.indices)

    @property
    def epochs(self) -> int:
        return self.federation.epochs

    @property
    def steps(self) -> int:
        """Mini-batches in one round of local work."""
        if self.federation.steps:
            return self.federation.steps
        whole, rest = divmod(self.examples, self.federation.batch_size)
        is_cut = rest == 0 or (whole > 0 and self.federation.drop_last)
        return self.epochs * (whole if is_cut else whole + 1)

    def epoch(self, key: Key) -> Iterator[Batch]:
        """One pass in an order drawn from `key`."""
        return self._pass(key, self.examples)

    def work(self, key: Key) -> Iterator[Batch]:
        """All mini-batches of one round: `epochs` passes, or `steps` over as many as it takes."""
        steps, size = self.federation.steps, self.federation.batch_size
        passes = count() if steps else range(self.epochs)
        needed = steps * size if steps else self.examples
        batches = (b for number in passes for b in self._pass(fold(key, "epoch", number), needed))
        return islice(batches, steps)

    def draw(self, key: Key) -> Batch:
        """One mini-batch at random, with replacement if the client holds less."""
        size = self.federation.batch_size
        if size <= self.examples:
            return self.federation.gather(self.indices[keys.sample(key, self.examples, size)])
        places = keys.generator(key).integers(self.examples, size=size)
        return self.federation.gather(self.indices[torch.from_numpy(places)])

    def ordered(self) -> Iterator[Batch]:
        """Every example once in stored order, in large mini-batches."""
        return self.federation.train_batches(self.indices)

    def split(self, share: float) -> tuple["ClientBatches", "ClientBatches"]:
        """Training and validation data; at least an example each, the same where there is one."""
        if self.examples == 1:
            return self, self
        held = min(max(round(share * self.examples), 1), self.examples - 1)
        places = torch.arange(held) * self.examples // held
        is_held = torch.zeros(self.examples, dtype=torch.bool)
        is_held[places] = True
        return replace(self, indices=self.indices[~is_held]), replace(
            self, indices=self.indices[is_held]
        )

    def _pass(self, key: Key, needed: int) -> Iterator[Batch]:
        """At least `needed` examples of one pass, or all there are."""
        order = self.indices.index_select(0, keys.permutation(fold(key, "order"), self.examples))
        size = self.federation.batch_size
        if self.federation.drop_last and self.examples > size:
            order = order[: self.examples - self.examples % size]
        return self.federation.train_batches(order[:needed], size)


def _pieces(indices: Tensor, size: int) -> Iterator[Tensor]:
    return (indices[start : start + size] for start in range(0, len(indices), size))
