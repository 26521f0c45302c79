"""Named ways to deal a data set among clients; each gives every example at most one client.

A client's test shard is cut like its training shard: of each class (or cluster, or the whole set)
it gets that part of the test examples which it has of the training examples.
"""

from dataclasses import dataclass
from typing import TypeAlias, get_args

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedsieve.core import keys
from fedsieve.core.errors import DataError
from fedsieve.core.keys import Key, fold, generator
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.data.partitions import splits
from fedsieve.data.partitions.label_skew import (
    ALPHA_LIMIT,
    Assignment,
    CappedDirichlet,
    Dirichlet,
    NumpyDirichlet,
    Shards,
    classes,
    follow,
)
from fedsieve.data.partitions.splits import Floats, Ints


@dataclass(frozen=True)
class Iid:
    """Equal random parts."""

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        return _one_group(dataset, np.full(num_clients, 1 / num_clients), key)


@dataclass(frozen=True)
class Quantity:
    """Random parts whose sizes are drawn from Dirichlet(alpha)."""

    alpha: float

    def __post_init__(self) -> None:
        in_range("quantity: alpha", self.alpha, 0, ALPHA_LIMIT, above=True)

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        draw = generator(fold(key, "shares")).dirichlet(np.full(num_clients, self.alpha))
        return _one_group(dataset, draw, key)


@dataclass(frozen=True)
class Clusters:
    """Feature skew: k-means clusters, each cut into even parts, some parts for each client."""

    k: int = 10
    parts: int = 20
    per_client: int = 2

    def __post_init__(self) -> None:
        for name in ("k", "parts", "per_client"):
            in_range(f"clusters: {name}", getattr(self, name), 1)

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        total = self.k * self.parts
        if num_clients * self.per_client > total:
            raise DataError(
                f"partition clusters: {num_clients} clients with {self.per_client} parts each need "
                f"more than the {self.k} * {self.parts} = {total} parts. Raise parts."
            )
        groups, test_groups = self._cluster(dataset, fold(key, "centres"))
        even = np.full((self.parts, self.k), 1 / self.parts)
        counts = splits.apportion(even, np.bincount(groups, minlength=self.k))
        part = groups * self.parts + splits.distribute(groups, counts, fold(key, "deal"))
        holder = np.full(total, splits.NOBODY)
        taken = generator(fold(key, "shares")).permutation(total)[: num_clients * self.per_client]
        holder[taken] = np.arange(len(taken)) % num_clients
        return follow(holder[part], groups, test_groups, num_clients, key)

    def _cluster(self, dataset: Dataset, key: Key) -> tuple[Ints, Ints]:
        from sklearn.cluster import KMeans  # noqa: PLC0415 - takes a second to import

        if dataset.layout == "tokens" or len(dataset.x) < self.k:
            raise DataError(
                f"partition clusters: {dataset.name} has {len(dataset.x)} examples of layout "
                f"{dataset.layout!r}; it needs at least k={self.k} rows or images."
            )
        x, x_test = (dataset.inputs(a).flatten(1).numpy() for a in (dataset.x, dataset.x_test))
        model = KMeans(self.k, n_init=1, random_state=keys.torch_seed(key) % 2**32)
        with threadpool_limits(1):  # sums in a fixed order, so that equal keys give equal clusters
            groups = model.fit_predict(x)
            return groups.astype(np.int64), model.predict(x_test).astype(np.int64)


@dataclass(frozen=True)
class Natural:
    """One client for each owner (writer, speaker) with at least `min_examples` to train on."""

    min_examples: int = 1

    def __post_init__(self) -> None:
        in_range("natural: min_examples", self.min_examples, 1)

    def owners(self, dataset: Dataset) -> Ints:
        """The owners with enough examples, and with test examples if those have owners too."""
        owners, counts = np.unique(_owners(dataset), return_counts=True)
        enough = owners[counts >= self.min_examples]
        if dataset.owners_test is not None:
            enough = np.intersect1d(enough, dataset.owners_test.numpy())
        return enough

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        owners = self.owners(dataset)
        chosen = owners[keys.sample(fold(key, "owners"), len(owners), num_clients)]
        owner = _position(chosen, _owners(dataset))
        if dataset.owners_test is not None:
            return Assignment(owner, _position(chosen, dataset.owners_test.numpy()))
        groups, test_groups = (
            _whole_set(dataset)
            if dataset.kind in {"labels", "values"}
            else classes(dataset, "natural")
        )
        return follow(owner, groups, test_groups, num_clients, key)


Base: TypeAlias = (
    Iid | Dirichlet | CappedDirichlet | NumpyDirichlet | Quantity | Shards | Clusters | Natural
)


@dataclass(frozen=True)
class FeatureShift:
    """A base partition, and one N(0, sd^2) vector for each client added to its training inputs.

    Test inputs are not shifted. Where targets come from a planted truth they are made of the
    shifted inputs, so that the truth stays common to all clients.
    """

    sd: float
    base: Base = Iid()

    def __post_init__(self) -> None:
        in_range("feature_shift: sd", self.sd, 0)

    def draw(self, dataset: Dataset, num_clients: int, key: Key) -> Tensor:
        """The shifts of all clients, (clients, *input_shape)."""
        if dataset.layout == "tokens":
            raise DataError(
                f"partition feature_shift: {dataset.name} holds token numbers, which cannot be "
                "shifted. Use the base partition alone."
            )
        draws = [keys.normal(fold(key, c), dataset.input_shape) for c in range(num_clients)]
        return self.sd * torch.stack(draws)


Scheme: TypeAlias = Base | FeatureShift
PARTITIONS: tuple[type[Scheme], ...] = (*get_args(Base), FeatureShift)


def _whole_set(dataset: Dataset) -> tuple[Ints, Ints]:
    return np.zeros(len(dataset.x), np.int64), np.zeros(len(dataset.x_test), np.int64)


def _one_group(dataset: Dataset, share: Floats, key: Key) -> Assignment:
    groups, test_groups = _whole_set(dataset)
    counts = splits.apportion(share[:, None], np.array([len(groups)]))
    owner = splits.distribute(groups, counts, fold(key, "deal"))
    return follow(owner, groups, test_groups, len(share), key)


def _owners(dataset: Dataset) -> Ints:
    if dataset.owners is None:
        raise DataError(
            f"partition natural: {dataset.name} does not say whose its examples are. "
            "Use iid, quantity, shards, clusters or one of the dirichlets."
        )
    return dataset.owners.numpy()


def _position(chosen: Ints, owners: Ints) -> Ints:
    """The place of each owner in the ascending `chosen`, or NOBODY."""
    place = np.minimum(np.searchsorted(chosen, owners), len(chosen) - 1)
    return np.where(chosen[place] == owners, place, splits.NOBODY)
