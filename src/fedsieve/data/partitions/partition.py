"""Partitions: who holds which examples, always the same for the same key, with a fingerprint."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsieve.core import options
from fedsieve.core.errors import ConfigError, DataError
from fedsieve.core.keys import Key, fold
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.data.partitions import splits
from fedsieve.data.partitions.schemes import PARTITIONS, Base, FeatureShift, Natural, Scheme
from fedsieve.data.partitions.splits import NOBODY, Ints


@dataclass(frozen=True, eq=False)
class Partition:
    """Ascending example numbers for each client.

    Attributes:
        train: of training examples; shards are disjoint.
        test: of test examples.
        validation: of training examples that are held out of `train`.
        shift: what is added to a client's training inputs, (clients, *input_shape).
        fingerprint: 16 hex digits, equal where all of the above is equal.
        is_pooled: one client trains on all of `train`; models are scored on the same shards.
    """

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    validation: tuple[Tensor, ...]
    shift: Tensor | None
    fingerprint: str
    is_pooled: bool = False

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Training examples by the client that trains on them."""
        return (torch.cat(self.train).sort().values,) if self.is_pooled else self.train


class Share(NamedTuple):
    """What one client holds; `classes` counts its training examples by class or label."""

    client: int
    train: int
    validation: int
    test: int
    classes: tuple[int, ...]


def split(
    dataset: Dataset,
    spec: Scheme | str,
    num_clients: int | None,
    key: Key,
    validation: float = 0.0,
) -> Partition:
    """Deal `dataset` among clients; each gets at least one training and one test example.

    Args:
        dataset: what is dealt.
        spec: a scheme, or its text such as `dirichlet(alpha=0.2)`.
        num_clients: how many; None is for the natural partition and means all owners.
        key: where all draws come from.
        validation: the part of each client's training examples to hold out.

    Raises:
        ConfigError: an option is unknown or out of range, or the number of clients is missing.
        DataError: the data cannot be dealt in this way or among so many.
    """
    scheme = options.read(spec, PARTITIONS, "partition") if isinstance(spec, str) else spec
    in_range("partition: validation", validation, 0, 1)
    base = scheme.base if isinstance(scheme, FeatureShift) else scheme
    clients = _count_clients(dataset, base, num_clients)
    assigned = base.assign(dataset, clients, key)
    owner = splits.fill_empty(assigned.owner, clients)
    is_out = splits.held_out(owner, clients, validation, fold(key, "validation"))
    train = _shards(np.where(is_out, NOBODY, owner), clients)
    held_out = _shards(np.where(is_out, owner, NOBODY), clients)
    test = _shards(splits.fill_empty(assigned.test_owner, clients), clients)
    shift = None
    if isinstance(scheme, FeatureShift):
        shift = scheme.draw(dataset, clients, fold(key, "shift"))
    return Partition(train, test, held_out, shift, _fingerprint((train, test, held_out), shift))


def alone(dataset: Dataset, client: int, key: Key, validation: float = 0.0) -> Partition:
    """All of `dataset` for one client, as it is where the client is; the others hold nothing."""
    owner, clients = np.full(len(dataset.x), client), client + 1
    is_out = splits.held_out(owner, clients, validation, fold(key, "validation"))
    train = _shards(np.where(is_out, NOBODY, owner), clients)
    held_out = _shards(np.where(is_out, owner, NOBODY), clients)
    test = _shards(np.full(len(dataset.x_test), client), clients)
    return Partition(train, test, held_out, None, _fingerprint((train, test, held_out), None))


def describe(partition: Partition, dataset: Dataset) -> list[Share]:
    """What each client holds, for a table or a drawing."""
    return [
        Share(client, len(train), len(held_out), len(test), _class_counts(dataset, train))
        for client, (train, held_out, test) in enumerate(
            zip(partition.train, partition.validation, partition.test, strict=True)
        )
    ]


def _count_clients(dataset: Dataset, base: Base, num_clients: int | None) -> int:
    name = options.name_of(type(base))
    if isinstance(base, Natural):
        owners = len(base.owners(dataset))
        if owners == 0 or (num_clients or 0) > owners:
            raise DataError(
                f"partition natural: {num_clients or 'all'} clients asked for, but "
                f"{dataset.name} has {owners} owners with at least {base.min_examples} examples. "
                "Lower the number of clients or min_examples."
            )
        num_clients = owners if num_clients is None else num_clients
    if num_clients is None:
        raise ConfigError(f"partition {name}: needs a number of clients.")
    in_range(f"partition {name}: clients", num_clients, 1)
    for what, examples in (("training", dataset.x), ("test", dataset.x_test)):
        if num_clients > len(examples):
            raise DataError(
                f"partition {name}: {dataset.name} has {len(examples)} {what} examples, too few "
                f"for {num_clients} clients with at least one each. Lower the number of clients."
            )
    return num_clients


def _shards(owner: Ints, num_clients: int) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(members) for members in splits.members(owner, num_clients))


def _class_counts(dataset: Dataset, examples: Tensor) -> tuple[int, ...]:
    if dataset.kind == "values":
        return ()
    targets = dataset.y.index_select(0, examples)
    if dataset.kind in {"classes", "binary"}:
        counts = targets.bincount(minlength=dataset.num_classes)
    else:
        counts = targets.sum(0).long()
    return tuple(counts.tolist())


def _fingerprint(parts: tuple[tuple[Tensor, ...], ...], shift: Tensor | None) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for shards in parts:
        sizes = [len(shards), *(len(shard) for shard in shards)]
        digest.update(np.array(sizes, "<i8").tobytes())
        for shard in shards:
            digest.update(shard.numpy().astype("<i8").tobytes())
    if shift is not None:
        digest.update(shift.numpy().astype("<f8").tobytes())
    return digest.hexdigest()
