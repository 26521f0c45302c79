"""Partitions that deal classes unevenly, and how test shards follow training shards."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsieve.core.errors import DataError
from fedsieve.core.keys import Key, fold, generator
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.data.partitions import splits
from fedsieve.data.partitions.splits import Ints

ALPHA_LIMIT = 1e9  # equal shares for any purpose; an infinite one cannot be drawn from
_ATTEMPTS = 1000


class Assignment(NamedTuple):
    """The client of each training and of each test example."""

    owner: Ints
    test_owner: Ints


@dataclass(frozen=True)
class Dirichlet:
    """Label skew. Each class is shared among the clients by a draw from Dirichlet(alpha).

    With `balanced` (Hsu, Qi, Brown 2019) each client draws its class preference from
    Dirichlet(alpha * class frequencies) and takes an equal number of examples by it.
    """

    alpha: float
    balanced: bool = False

    def __post_init__(self) -> None:
        in_range("dirichlet: alpha", self.alpha, 0, ALPHA_LIMIT, above=True)

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        groups, test_groups = classes(dataset, "dirichlet")
        sizes = np.bincount(groups, minlength=dataset.num_classes)
        draw = generator(fold(key, "shares"))
        if self.balanced:
            preference = np.zeros((num_clients, len(sizes)))
            prior = self.alpha * sizes[sizes > 0] / sizes.sum()
            preference[:, sizes > 0] = draw.dirichlet(prior, num_clients)
            counts = splits.equal_hands(preference, sizes)
        else:
            share = draw.dirichlet(np.full(num_clients, self.alpha), len(sizes)).T
            counts = splits.apportion(share, sizes)
        owner = splits.distribute(groups, counts, fold(key, "deal"))
        return follow(owner, groups, test_groups, num_clients, key)


@dataclass(frozen=True)
class CappedDirichlet:
    """Label skew without giants (Yurochkin et al. 2019): Dirichlet(alpha) shares of each class.

    Classes are dealt in turn; a client that holds its even part N / clients already gets nothing
    more. All is drawn again until everyone has `min_examples`.
    """

    alpha: float
    min_examples: int = 10

    def __post_init__(self) -> None:
        in_range("capped_dirichlet: alpha", self.alpha, 0, ALPHA_LIMIT, above=True)
        in_range("capped_dirichlet: min_examples", self.min_examples, 0)

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        groups, test_groups = classes(dataset, "capped_dirichlet")
        sizes = np.bincount(groups, minlength=dataset.num_outputs)
        for attempt in range(_ATTEMPTS):
            draw = generator(fold(key, "shares", attempt))
            share = draw.dirichlet(np.full(num_clients, self.alpha), len(sizes)).T
            counts = splits.capped(share, sizes)
            if counts.sum(1).min() >= self.min_examples:
                owner = splits.distribute(groups, counts, fold(key, "deal"))
                return follow(owner, groups, test_groups, num_clients, key)
        raise _too_few("capped_dirichlet", num_clients, self.min_examples)


@dataclass(frozen=True)
class NumpyDirichlet:
    """The very split of programs that follow the rule of `capped_dirichlet` after numpy's `seed`.

    For comparisons with results of PFNM's and FedMA's. The seed of the run does not matter.
    """

    alpha: float
    seed: int = 0
    min_examples: int = 10

    def __post_init__(self) -> None:
        in_range("numpy_dirichlet: alpha", self.alpha, 0, ALPHA_LIMIT, above=True)
        in_range("numpy_dirichlet: seed", self.seed, 0, 2**32 - 1)
        in_range("numpy_dirichlet: min_examples", self.min_examples, 0)

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        groups, test_groups = classes(dataset, "numpy_dirichlet")
        draw = np.random.RandomState(self.seed)
        for _ in range(_ATTEMPTS):
            owner = splits.numpy_capped(groups, num_clients, self.alpha, draw)
            if np.bincount(owner, minlength=num_clients).min() >= self.min_examples:
                return follow(owner, groups, test_groups, num_clients, key)
        raise _too_few("numpy_dirichlet", num_clients, self.min_examples)


@dataclass(frozen=True)
class Shards:
    """Label skew of McMahan et al. 2017: sort by class, cut, deal `per_client` pieces to each."""

    per_client: int = 2

    def __post_init__(self) -> None:
        in_range("shards: per_client", self.per_client, 1)

    def assign(self, dataset: Dataset, num_clients: int, key: Key) -> Assignment:
        groups, test_groups = classes(dataset, "shards")
        pieces = num_clients * self.per_client
        order = generator(fold(key, "deal")).permutation(len(groups))
        order = order[np.argsort(groups[order], kind="stable")]
        edges = np.rint(np.linspace(0, len(groups), pieces + 1)).astype(np.int64)
        holder = generator(fold(key, "shares")).permutation(pieces) % num_clients
        owner = np.empty(len(groups), np.int64)
        owner[order] = np.repeat(holder, np.diff(edges))
        return follow(owner, groups, test_groups, num_clients, key)


def classes(dataset: Dataset, scheme: str) -> tuple[Ints, Ints]:
    """The class of each training and of each test example, for a scheme that deals by them."""
    if dataset.kind not in {"classes", "binary"}:
        raise DataError(
            f"partition {scheme}: {dataset.name} has targets of kind {dataset.kind!r}, so an "
            "example has no single class to be dealt by. Use iid, quantity or clusters."
        )
    return dataset.y.numpy(), dataset.y_test.numpy()


def follow(owner: Ints, groups: Ints, test_groups: Ints, num_clients: int, key: Key) -> Assignment:
    """A cut whose test examples of each group are dealt as its training examples are."""
    num_groups = 1 + int(max(groups.max(), test_groups.max()))
    share = splits.shares(owner, groups, num_clients, num_groups)
    counts = splits.apportion(share, np.bincount(test_groups, minlength=num_groups))
    return Assignment(owner, splits.distribute(test_groups, counts, fold(key, "test")))


def _too_few(scheme: str, num_clients: int, min_examples: int) -> DataError:
    return DataError(
        f"partition {scheme}: in {_ATTEMPTS} draws some of {num_clients} clients had fewer than "
        f"{min_examples} examples. Lower min_examples or clients, or raise alpha."
    )
