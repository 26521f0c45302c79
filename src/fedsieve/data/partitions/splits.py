"""Arithmetic of partitions: shares become counts, counts become an owner for each example.

A partition is kept as an owner vector, the client of each example (-1: nobody), so that no example
can go to two clients. Groups are what shares refer to: classes, clusters or the whole set.
"""

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random import RandomState

from fedsieve.core.keys import Key, generator

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

NOBODY = -1


def apportion(share: Floats, sizes: Ints) -> Ints:
    """Whole counts (clients, groups) within 1 of share * sizes.

    Running sums over clients are the rounded running sums of the shares, so a group whose shares
    sum to 1 is given out entirely.
    """
    edges = np.rint(np.cumsum(share, axis=0) * sizes).astype(np.int64)
    return np.diff(edges, axis=0, prepend=0)


def capped(share: Floats, sizes: Ints) -> Ints:
    """Counts (clients, groups) by share, group after group, none for who holds an even part."""
    counts = np.zeros(share.shape, np.int64)
    for group, size in enumerate(sizes):
        if not size:  # perhaps because all has been dealt
            continue
        is_open = counts.sum(1) < sizes.sum() / len(share)
        part = share[:, group] * is_open
        part = part if part.sum() else is_open.astype(np.float64)
        counts[:, [group]] = apportion(part[:, None] / part.sum(), np.array([size]))
    return counts


def numpy_capped(groups: Ints, num_clients: int, alpha: float, draw: RandomState) -> Ints:
    """Owners by one draw of the rule above as it is programmed around numpy's first generator.

    Each group is shuffled, shares are drawn, and edges between clients are rounded down.
    """
    owner = np.full(len(groups), NOBODY)
    held = np.zeros(num_clients, np.int64)
    for group in range(groups.max() + 1):
        members = np.flatnonzero(groups == group)
        draw.shuffle(members)
        is_open = held < len(groups) / num_clients
        part = draw.dirichlet(np.full(num_clients, alpha)) * is_open
        part = part if part.sum() > 0 else is_open.astype(np.float64)  # tiny alphas draw nan
        edges = (np.cumsum(part / part.sum()) * len(members)).astype(np.int64)
        edges[-1] = len(members)
        counts = np.diff(edges, prepend=0)
        owner[members] = np.repeat(np.arange(num_clients), counts)
        held += counts
    return owner


def distribute(groups: Ints, counts: Ints, key: Key) -> Ints:
    """Owners such that client c gets counts[c, g] random examples of group g."""
    num_clients, num_groups = counts.shape
    left = np.bincount(groups, minlength=num_groups) - counts.sum(0)
    hands = np.vstack([counts, left])
    holders = np.append(np.arange(num_clients), NOBODY)
    order = generator(key).permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    owner = np.empty(len(groups), np.int64)
    owner[order] = np.repeat(np.tile(holders, num_groups), hands.T.ravel())
    return owner


def shares(owner: Ints, groups: Ints, num_clients: int, num_groups: int) -> Floats:
    """share[c, g]: the part of group g that client c holds; equal parts where g is empty."""
    sizes = np.bincount(groups, minlength=num_groups)
    is_held = owner != NOBODY
    cells = owner[is_held] * num_groups + groups[is_held]
    counts = np.bincount(cells, minlength=num_clients * num_groups)
    share = counts.reshape(num_clients, num_groups) / np.maximum(sizes, 1)
    share[:, sizes == 0] = 1 / num_clients
    return share


def fill_empty(owner: Ints, num_clients: int) -> Ints:
    """Give each client without an example one: a free one, else the last of the largest client.

    With at least as many examples as clients the largest has two or more whenever one has none,
    so one pass over the empty clients is enough.
    """
    owner = owner.copy()
    sizes = np.bincount(owner[owner != NOBODY], minlength=num_clients)
    free = list(np.flatnonzero(owner == NOBODY)[:num_clients])
    for client in np.flatnonzero(sizes == 0):
        if free:
            owner[free.pop(0)] = client
        else:
            largest = sizes.argmax()
            owner[np.flatnonzero(owner == largest)[-1]] = client
            sizes[largest] -= 1
    return owner


def equal_hands(preference: Floats, sizes: Ints) -> Ints:
    """Counts (clients, groups) with equal row sums, each client's near its preference.

    Clients are served in turn; where a group's pool has run dry the rest of the hand is taken by
    the preference among the other groups.
    """
    num_clients = len(preference)
    pool = sizes.copy()
    wanted = apportion(np.full((num_clients, 1), 1 / num_clients), sizes.sum(keepdims=True))
    counts = np.zeros(preference.shape, np.int64)
    for client in range(num_clients):
        counts[client] = _hand(preference[client], int(wanted[client, 0]), pool)
        pool -= counts[client]
    return counts


def held_out(owner: Ints, num_clients: int, fraction: float, key: Key) -> npt.NDArray[np.bool_]:
    """Random floor(fraction * n) of each client's n examples, but never all of them."""
    order = generator(key).permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    order = order[np.searchsorted(owner[order], 0) :]
    sizes = np.bincount(owner[order], minlength=num_clients)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept_out = np.minimum(np.floor(fraction * sizes), sizes - 1)
    is_out = np.zeros(len(owner), np.bool_)
    is_out[order] = rank < np.repeat(kept_out, sizes)
    return is_out


def members(owner: Ints, num_clients: int) -> list[Ints]:
    """Each client's examples in ascending order."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(num_clients + 1))
    return [order[a:b] for a, b in pairwise(bounds)]


def _hand(preference: Floats, wanted: int, pool: Ints) -> Ints:
    hand = np.zeros_like(pool)
    # Each pass ends the hand or empties at least one more group.
    while (missing := wanted - int(hand.sum())) > 0:
        rest = pool - hand
        weights = np.where(rest > 0, preference, 0.0)
        if weights.sum() <= 0:  # all it likes is gone, or too small for a float
            weights = rest.astype(np.float64)
        share = (weights / weights.sum())[:, None]
        hand += np.minimum(rest, apportion(share, np.array([missing]))[:, 0])
    return hand
