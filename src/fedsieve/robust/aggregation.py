"""Robust aggregation for every method that averages: replies go in, replies come out.

A rule changes the replies of a round such that the method's own mean of them is the rule's
estimate. It knows roles of fields alone, so it serves every method and every kind of message:

- an entry that all clients send becomes the estimate over clients, in every reply;
- an entry that some send (`Kept`) becomes the estimate with 0 for those who did not, over the
  like estimate of their masks; a bit of a mask counts only if more clients agree than may be false;
- numbers become their median, so that no client counts more than another.

Distances of sparse vectors say little, so Krum adds to them how far supports and signs disagree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedsieve.core.errors import ConfigError
from fedsieve.core.message import Bit, Drawn, Kept, Natural, Number, Params, Whole, fields
from fedsieve.core.method import AnyMethod, message_types
from fedsieve.core.options import in_range
from fedsieve.robust.updates import MedianNorm, clipped, entries, has_updates

Estimate: TypeAlias = Callable[[Tensor, Sequence[int]], Tensor]  # of values of these clients


class Replies(NamedTuple):
    """Of one round, with the broadcasts that they answer."""

    ups: Sequence[Any]
    downs: Sequence[Any]


@dataclass(frozen=True)
class Mean:
    """The method's own mean."""

    def combine(self, replies: Replies) -> list[Any]:
        return list(replies.ups)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each entry without the `trim` share of replies at either end."""

    trim: float = 0.2

    def __post_init__(self) -> None:
        in_range("trimmed_mean: trim", self.trim, 0, 0.5, below=True)

    def combine(self, replies: Replies) -> list[Any]:
        return _by_entry(replies.ups, lambda n: int(self.trim * n + 1e-9))


@dataclass(frozen=True)
class Median:
    """The median of each entry."""

    def combine(self, replies: Replies) -> list[Any]:
        return _by_entry(replies.ups, lambda n: (n - 1) // 2)


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the least sum of distances to all updates, by `steps` of Weiszfeld's."""

    steps: int = 10

    def __post_init__(self) -> None:
        in_range("geometric_median: steps", self.steps, 1)

    def combine(self, replies: Replies) -> list[Any]:
        products = _products(replies)
        weights = torch.full((len(products),), 1 / len(products), dtype=torch.float64)
        for _ in range(self.steps):
            # |x_k - sum_j w_j x_j|^2 from inner products alone.
            to_point = products.diagonal() - 2 * products @ weights + weights @ products @ weights
            distances = to_point.clamp(min=0).sqrt()
            inverse = 1 / distances.clamp(min=1e-6 * float(distances.median()) + 1e-30)
            weights = inverse / inverse.sum()

        def point(values: Tensor, clients: Sequence[int]) -> Tensor:
            share = (weights[clients] / weights[clients].sum()).to(values.dtype)
            return (share.view(-1, *[1] * (values.dim() - 1)) * values).sum(0)

        return _replaced(replies.ups, point, (len(products) - 1) // 2)


@dataclass(frozen=True)
class Krum:
    """The mean of those replies alone whose nearest neighbours are nearest (multi-Krum).

    Attributes:
        attackers: share of replies that may be false.
        keep: how many replies count; none: all but that share. 1 is Krum itself.
    """

    attackers: float = 0.2
    keep: int | None = None

    def __post_init__(self) -> None:
        in_range("krum: attackers", self.attackers, 0, 0.5, below=True)
        in_range("krum: keep", 1 if self.keep is None else self.keep, 1)

    def combine(self, replies: Replies) -> list[Any]:
        count = len(replies.ups)
        false = int(self.attackers * count + 1e-9)
        nearest = max(count - false - 2, 1)
        if count < 3:
            return list(replies.ups)
        distances = _in_medians(_distances(replies)) + _in_medians(_disagreement(replies))
        scores = distances.square().sort(dim=1).values[:, 1 : nearest + 1].sum(1)
        kept = scores.argsort(stable=True)[: self.keep or count - false]
        return [replies.ups[k] for k in sorted(kept.tolist())]


@dataclass(frozen=True)
class NormClipped:
    """The mean of updates, none longer than `times` the median of their norms."""

    times: float = 1.0

    def __post_init__(self) -> None:
        in_range("norm_clipped: times", self.times, 0, above=True)

    def combine(self, replies: Replies) -> list[Any]:
        return clipped(MedianNorm(self.times), *replies)


@dataclass(frozen=True)
class Agreement:
    """The mean of updates that point where most do, none longer than `times` the median norm.

    The agreement of a client is the median of its cosines with the others. Whoever has less than
    `least` times the cohort's median agreement is left out; where that is not above 0, whoever has
    less than it.
    """

    least: float = 0.3
    times: float = 2.0

    def __post_init__(self) -> None:
        in_range("agreement: least", self.least, 0, 1)
        in_range("agreement: times", self.times, 0, above=True)

    def combine(self, replies: Replies) -> list[Any]:
        count = len(replies.ups)
        if count < 3:
            return list(replies.ups)
        products = _products(replies)
        lengths = products.diagonal().sqrt().clamp(min=1e-30)
        cosines = products / lengths[:, None] / lengths[None, :]
        others = cosines[~torch.eye(count, dtype=torch.bool)].view(count, count - 1)
        agreed = others.quantile(0.5, dim=1)
        usual = float(agreed.quantile(0.5))
        kept = (agreed >= (self.least * usual if usual > 0 else usual)).nonzero().flatten()
        bounded = clipped(MedianNorm(self.times), *replies)
        return [bounded[k] for k in kept.tolist()]


Aggregation: TypeAlias = (
    Mean | TrimmedMean | Median | GeometricMedian | Krum | NormClipped | Agreement
)
MEAN = Mean()
AGGREGATIONS: tuple[type[Aggregation], ...] = (
    Mean,
    TrimmedMean,
    Median,
    GeometricMedian,
    Krum,
    NormClipped,
    Agreement,
)


def check(rule: Aggregation, method: AnyMethod, name: str) -> None:
    """Refuse a rule that makes no sense for a method.

    Raises:
        ConfigError: entries of replies stand for different things, or replies are no updates.
    """
    down, up = message_types(method)
    if not (isinstance(rule, Mean | NormClipped) or method.same_entries):
        raise ConfigError(
            f"aggregation: entries of {name}'s replies mean something else for each client, so "
            "they cannot be compared. Use mean or norm_clipped, or another method."
        )
    if isinstance(rule, NormClipped) and not has_updates(up, down):
        raise ConfigError(f"aggregation: replies of {name} are no updates. Use mean.")


def _by_entry(ups: Sequence[Any], trimmed: Callable[[int], int]) -> list[Any]:
    def estimate(values: Tensor, _: Sequence[int]) -> Tensor:
        cut, ordered = trimmed(len(values)), values.sort(dim=0).values
        return ordered[cut : len(values) - cut].mean(0)

    return _replaced(ups, estimate, trimmed(len(ups)))


def _replaced(ups: Sequence[Any], estimate: Estimate, false: int) -> list[Any]:
    """Replies whose mean is the estimate, if at most `false` of them are false."""
    kind = type(ups[0])
    roles = dict(fields(kind))
    new = [dict[str, Any]() for _ in ups]
    for name, role in roles.items():
        values = [getattr(up, name) for up in ups]
        if isinstance(role, Natural):
            same = values if role.is_sender else [median_low(values)] * len(ups)
        elif isinstance(role, Number):
            numbers = torch.tensor(values, dtype=torch.float64)
            same = [float(estimate(numbers, range(len(ups))))] * len(ups)
        else:
            same = [dict(value) for value in values]
        for fields_of_up, value in zip(new, same, strict=True):
            fields_of_up[name] = value
    for name, role in roles.items():
        if isinstance(role, Bit | Drawn):
            _vote([fields_of_up[name] for fields_of_up in new], false)
    for name, role in roles.items():
        if isinstance(role, Whole):
            _replace_whole([fields_of_up[name] for fields_of_up in new], estimate)
        elif isinstance(role, Kept):
            before = [getattr(up, role.where) for up in ups]
            after = [fields_of_up[role.where] for fields_of_up in new]
            _replace_kept([fields_of_up[name] for fields_of_up in new], before, after, estimate)
    return [kind(**fields_of_up) for fields_of_up in new]


def _vote(bits: list[Params], false: int) -> None:
    """A bit that no more than `false` clients set is set by none, one that as few lack by all."""
    for name, clients in _by_name(bits).items():
        votes = torch.stack([bits[k][name] for k in clients]).sum(0)
        lowest, highest = votes > len(clients) - 1 - false, votes > false
        for k in clients:
            bits[k][name] = (bits[k][name] | lowest) & highest


def _replace_whole(values: list[Params], estimate: Estimate) -> None:
    for name, clients in _by_name(values).items():
        if not values[clients[0]][name].is_floating_point():
            continue
        same = estimate(torch.stack([values[k][name] for k in clients]), clients)
        for k in clients:
            values[k][name] = same


def _replace_kept(
    values: list[Params], before: list[Params], after: list[Params], estimate: Estimate
) -> None:
    """Values over those who sent them; the others' are 0."""
    for name, clients in _by_name(values).items():
        stacked = torch.stack([values[k][name] for k in clients])
        same = estimate(stacked, clients)
        named = next((before[k][name] for k in clients if name in before[k]), None)
        if named is None:  # what no mask names travels whole
            for k in clients:
                values[k][name] = same
            continue
        whole = torch.ones_like(named)  # as it does from a client whose mask lacks it
        bits = torch.stack([before[k].get(name, whole) for k in clients]).to(stacked.dtype)
        share = estimate(bits, clients).expand_as(same)
        same = torch.where(share > 0, same / share.where(share > 0, 1), 0)
        for k in clients:
            values[k][name] = same * after[k].get(name, whole)


def _by_name(trees: list[Params]) -> dict[str, list[int]]:
    """The clients that have sent a tensor, by its name."""
    names = dict.fromkeys(name for tree in trees for name in tree)
    return {name: [k for k, tree in enumerate(trees) if name in tree] for name in names}


def _products(replies: Replies) -> Tensor:
    """Inner products of all updates with each other."""
    total = torch.zeros(len(replies.ups), len(replies.ups), dtype=torch.float64)
    for moved in _changes(replies):
        flat = moved.flatten(1).double()
        total += flat @ flat.T
    return total


def _distances(replies: Replies) -> Tensor:
    products = _products(replies)
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0).sqrt()


def _disagreement(replies: Replies) -> Tensor:
    """Share of entries sent by either of two clients that the other lacks or moves otherwise."""
    count = len(replies.ups)
    agreed, either = (torch.zeros(count, count, dtype=torch.float64) for _ in range(2))
    for moved in _changes(replies, sparse=True):
        signs = moved.flatten(1).sign().double()
        used = signs.abs()
        both = used @ used.T
        agreed += (signs @ signs.T + both) / 2
        either += used.sum(1)[:, None] + used.sum(1)[None, :] - both
    return torch.where(either > 0, 1 - agreed / either.clamp(min=1), 0)


def _changes(replies: Replies, *, sparse: bool = False) -> list[Tensor]:
    """Updates of each tensor, stacked; only those under masks if `sparse`."""
    changes: dict[tuple[str, str], list[Tensor]] = {}
    for up, down in zip(*replies, strict=True):
        for x in entries(up, down):
            if not sparse or x.sent is not None:
                changes.setdefault((x.field, x.name), []).append(x.change)
    return [torch.stack(moved) for moved in changes.values() if len(moved) == len(replies.ups)]


def _in_medians(distances: Tensor) -> Tensor:
    """Distances in units of the median one between two clients."""
    count = len(distances)
    others = distances[~torch.eye(count, dtype=torch.bool)]
    unit = float(others.median()) if len(others) else 0.0
    return distances / unit if unit > 0 else torch.zeros_like(distances)
