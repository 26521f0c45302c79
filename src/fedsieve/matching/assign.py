"""Matching the neurons of one layer: a greedy pass, then sweeps that re-match client by client.

Specification neural_matching, section 6. Nothing given is changed; atoms are numbered in order of
appearance, those that a client opens in the order of its neurons.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedsieve.core.errors import ConfigError
from fedsieve.matching.costs import (
    PRESETS,
    Atoms,
    Floats,
    Ints,
    Problem,
    Rule,
    cost,
    energy,
    posterior_means,
)

Labels: TypeAlias = Mapping[int, Ints]  # client -> atom of each of its neurons


class Step(NamedTuple):
    """One re-matching; F + 2 log(K_s!) never rises, unless the preset's limit of atoms binds."""

    client: int
    before: float
    after: float
    atoms: int


class LayerMatch(NamedTuple):
    """One layer matched: labels by client, and what is known of each atom."""

    labels: list[Ints]
    means: Floats
    counts: Ints
    energy: float
    steps: list[Step]


class State(NamedTuple):
    """Clients placed so far, and the atoms made of their neurons."""

    labels: Labels
    atoms: Atoms


def match_layer(
    problem: Problem, rule: Rule, order: Ints, start: Sequence[Ints] | None = None
) -> LayerMatch:
    """Match all clients' neurons.

    Args:
        problem: the neurons and their Gaussians.
        rule: the settings of the cost.
        order: (sweeps, clients), the clients in the order in which they are re-matched.
        start: labels to begin with in place of the greedy pass.

    Raises:
        ConfigError: a client is wider than the preset's limit of atoms.
    """
    _check_limit(problem, rule)
    state = _greedy(problem, rule) if start is None else _started(problem, start)
    value, steps = energy(problem, rule, state.atoms), []
    for sweep in order:
        state = collect(problem, state.labels)  # afresh: no drift from repeated subtraction
        for client in sweep.tolist():
            before = value + log_orders(state, client)
            state = place(problem, rule, remove(problem, state, client), client)
            value = energy(problem, rule, state.atoms)
            after = value + log_orders(state, client)
            steps.append(Step(client, before, after, len(state.atoms.sums)))
    state = collect(problem, state.labels)
    return LayerMatch(
        [state.labels[client] for client in range(problem.num_clients)],
        posterior_means(problem, rule, state.atoms),
        state.atoms.counts,
        energy(problem, rule, state.atoms),
        steps,
    )


def collect(problem: Problem, labels: Labels) -> State:
    """The atoms that these labels make."""
    size = max((int(atoms.max()) + 1 for atoms in labels.values()), default=0)
    sums = np.zeros((size, len(problem.kinds)))
    uses = np.zeros((size, problem.num_clients), np.bool_)
    for client, atoms in sorted(labels.items()):
        sums[atoms] += problem.shifted[client]
        uses[atoms, client] = True
    return State(labels, Atoms(sums, uses))


def remove(problem: Problem, state: State, client: int) -> State:
    """The state without a client; atoms that it alone used are removed, the others renumbered."""
    sums, uses = state.atoms.sums.copy(), state.atoms.uses.copy()
    sums[state.labels[client]] -= problem.shifted[client]
    uses[:, client] = False
    is_used = uses.any(1)
    number = np.cumsum(is_used) - 1
    labels = {c: number[atoms] for c, atoms in state.labels.items() if c != client}
    return State(labels, Atoms(sums[is_used], uses[is_used]))


def place(problem: Problem, rule: Rule, state: State, client: int) -> State:
    """The state with a client: each of its neurons joins an atom or opens one, at least cost."""
    size = len(state.atoms.sums)
    costs = cost(problem, rule, state.atoms, client)
    if not np.isfinite(costs).all():
        raise ConfigError(
            f"matching: costs of client {client} overflow. Its weights are too large, or variances "
            "too small."
        )
    labels = cheapest(costs, size)
    is_new = labels == size
    opened = int(is_new.sum())
    labels[is_new] += np.arange(opened)
    sums = np.vstack([state.atoms.sums, np.zeros((opened, state.atoms.sums.shape[1]))])
    uses = np.vstack([state.atoms.uses, np.zeros((opened, problem.num_clients), np.bool_)])
    sums[labels] += problem.shifted[client]
    uses[labels, client] = True
    return State({**state.labels, client: labels}, Atoms(sums, uses))


def cheapest(costs: Floats, used: int) -> Ints:
    """The atom of each row in an assignment of least cost, or `used` for a new one.

    The first `used` columns are atoms, the others new atoms, of which the k-th costs every row the
    same more than the first. With as many of them as rows one is always free, at no more than the
    last one's cost. Where an atom costs a row more than that, no best assignment joins the two: the
    solver is spared atoms that suit no row, and rows that no atom suits take the first new columns.
    Only ties could then be settled otherwise than in the whole matrix; with equal rows or equal
    atoms, where they come from, it is solved whole.
    """
    rows, columns = np.arange(len(costs)), np.arange(costs.shape[1])
    if len(columns) - used == len(rows):
        suits = costs[:, :used] <= costs[:, -1:]
        choosers, atoms = np.flatnonzero(suits.any(1)), np.flatnonzero(suits.any(0))
        offers = costs[np.ix_(choosers, atoms)]
        if not (_repeats(offers) or _repeats(offers.T)):
            columns = np.append(atoms, columns[len(columns) - len(choosers) :])
            rows = choosers
    labels = np.full(len(costs), used)
    _, chosen = linear_sum_assignment(costs[np.ix_(rows, columns)])
    labels[rows] = np.minimum(columns[chosen], used)
    return labels


def log_orders(state: State, client: int) -> float:
    """2 log(K_s!), K_s the number of atoms that the client alone uses."""
    alone = int((state.atoms.counts[state.labels[client]] == 1).sum())
    return 2 * math.lgamma(alone + 1)


def _greedy(problem: Problem, rule: Rule) -> State:
    """Widest client first, ties by index; its neurons are the first atoms."""
    widths = [len(neurons) for neurons in problem.shifted]
    first, *others = sorted(range(problem.num_clients), key=lambda c: -widths[c])
    state = collect(problem, {first: np.arange(widths[first])})
    for client in others:
        state = place(problem, rule, state, client)
    return state


def _started(problem: Problem, start: Sequence[Ints]) -> State:
    """Given labels, numbered without gaps."""
    for client, (atoms, neurons) in enumerate(zip(start, problem.shifted, strict=True)):
        if len(atoms) != len(neurons) or len(np.unique(atoms)) < len(atoms):
            raise ConfigError(
                f"matching: starting labels of client {client} must give each of its "
                f"{len(neurons)} neurons an atom of its own, found {atoms}."
            )
    _, flat = np.unique(np.concatenate(list(start)), return_inverse=True)
    edges = np.cumsum([len(atoms) for atoms in start])[:-1]
    return collect(problem, dict(enumerate(np.split(flat.astype(np.int64), edges))))


def _repeats(rows: Floats) -> bool:
    """Whether two rows are equal: neurons or atoms that the solver's order alone tells apart."""
    return len({row.tobytes() for row in rows}) < len(rows)


def _check_limit(problem: Problem, rule: Rule) -> None:
    limit, widest = PRESETS[rule.preset].max_atoms, max(len(neurons) for neurons in problem.shifted)
    if limit is not None and widest > limit:
        raise ConfigError(
            f"matching: a client has {widest} neurons in a layer, preset {rule.preset!r} allows "
            f"{limit} atoms, so that some would have no place. Use preset 'paper'."
        )
