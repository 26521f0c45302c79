"""What an assignment costs: -2 log posterior of the Beta-Bernoulli model, constants dropped.

Clients' neurons u, the atoms' sums b of them and all Gaussians are per coordinate; an atom with
precision q and stiffness k of its members scores sum_d w(q, k) b^2, so that the cost of a neuron
against an atom is the score after less the score before (specification neural_matching, sections 3
to 6).
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.options import in_range
from fedsieve.matching.divergences import DIVERGENCES, Divergence

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
PresetName: TypeAlias = Literal["paper", "pfnm-code"]
KlMode: TypeAlias = Literal["plugin", "joint"]


class Preset(NamedTuple):
    """Where the paper and PFNM's published program differ."""

    odds_weight: float  # a, of log(n / (S - n))
    odds_cap: int | None  # the largest n there
    max_atoms: int | None  # new columns are offered up to so many atoms, but always one


PRESETS: dict[PresetName, Preset] = {
    "paper": Preset(2.0, None, None),
    "pfnm-code": Preset(1.0, 10, 700),
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How one layer is matched: mass of the Beta process, weight and form of the divergence."""

    gamma0: float = 1.0
    eps: float = 0.0
    kl: KlMode = "plugin"
    preset: PresetName = "paper"
    divergence: Divergence = "kl"

    def __post_init__(self) -> None:
        in_range("matching: gamma0", self.gamma0, 0, math.inf, above=True, below=True)
        in_range("matching: eps", self.eps, 0, math.inf, below=True)
        for what, name, known in (
            ("preset", self.preset, PRESETS),
            ("kl", self.kl, ("plugin", "joint")),
            ("divergence", self.divergence, DIVERGENCES),
        ):
            if name not in known:
                raise ConfigError(unknown(f"value of {what}", name, known))
        if self.kl == "plugin" and self.eps > 0.5:
            warnings.warn(
                f"matching: eps={self.eps} with kl='plugin' punishes agreement: above 0.5 equal "
                "neurons may stay apart. Lower eps or use kl='joint'.",
                stacklevel=3,
            )


class Problem(NamedTuple):
    """The neurons of one layer at all clients.

    Coordinates in which all precisions agree are of one kind and share every weight of the cost:
    in a perceptron with one hidden layer all inputs are one kind, and each class is another.
    """

    shifted: list[Floats]  # u_s = precision_s * (w_s - prior_mean), one row for each neuron
    kinds: Ints  # of each coordinate
    is_kind: Floats  # (coordinates, kinds), 1 where a coordinate is of the kind
    precision: Floats  # (clients, kinds); 0: no evidence there
    prior_mean: Floats
    prior_precision: Floats  # (kinds,)

    @property
    def num_clients(self) -> int:
        return len(self.shifted)


def problem_of(
    neurons: list[Floats], precision: Floats, prior_mean: Floats, prior_precision: Floats
) -> Problem:
    """A problem from neurons, with precisions for each coordinate."""
    shifted = [lam * (rows - prior_mean) for rows, lam in zip(neurons, precision, strict=True)]
    columns = np.vstack([prior_precision, precision])
    distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
    kinds = inverse.ravel()
    is_kind = np.eye(distinct.shape[1])[kinds]
    return Problem(shifted, kinds, is_kind, distinct[1:], prior_mean, distinct[0])


class Atoms(NamedTuple):
    """Sums of the shifted neurons of each atom, and which clients use it."""

    sums: Floats  # b
    uses: Bools  # (atoms, clients)

    @property
    def counts(self) -> Ints:
        counts: Ints = self.uses.sum(1)
        return counts


def cost(problem: Problem, rule: Rule, atoms: Atoms, client: int) -> Floats:
    """The matrix C: rows are the client's neurons, columns the atoms and then new atoms.

    `atoms` hold the other clients' neurons only. Formulas (M), (N), (KM), (KN) in
    the form of specification neural_matching, section 5: two matrix products.
    """
    u, b = problem.shifted[client], atoms.sums
    uses = atoms.uses.copy()
    before = _weight(problem, rule, uses)
    uses[:, client] = True
    after = _weight(problem, rule, uses)
    per_atom = (_squares(problem, b) * (after - before)).sum(1)
    per_atom -= PRESETS[rule.preset].odds_weight * _log_odds(problem, rule, atoms.counts)
    squares = _squares(problem, u)
    used = 2 * u @ (b * after.take(problem.kinds, axis=1)).T
    used += squares @ after.T
    used += per_atom
    alone = np.zeros((1, problem.num_clients), np.bool_)
    alone[0, client] = True
    number = np.arange(1, _new_columns(rule, len(u), len(b)) + 1)
    new = (
        squares @ _weight(problem, rule, alone).T
        - 2 * math.log(rule.gamma0 / problem.num_clients)
        + 2 * np.log(number)
    )
    return np.hstack([used, new])


def energy(problem: Problem, rule: Rule, atoms: Atoms) -> float:
    """F of section 6: the -2 log posterior of a whole assignment, one client's factorial aside."""
    b, num_clients = atoms.sums, problem.num_clients
    fit = (_squares(problem, b) * _weight(problem, rule, atoms.uses)).sum()
    odds = _log_odds(problem, rule, np.arange(1, num_clients))
    popularity = np.concatenate([[0.0], np.cumsum(odds)])[atoms.counts - 1].sum()
    weight = PRESETS[rule.preset].odds_weight
    opened = -2 * len(b) * math.log(rule.gamma0 / num_clients)
    return float(fit + opened - weight * popularity)


def posterior_means(problem: Problem, rule: Rule, atoms: Atoms) -> Floats:
    """theta: the atoms' weights; the prior mean where nobody has evidence."""
    total = problem.prior_precision + _precision(problem, atoms.uses)
    if rule.kl == "joint" and rule.eps:
        total += rule.eps * _stiffness(problem, rule, atoms.uses)
    return problem.prior_mean + atoms.sums / total.take(problem.kinds, axis=1)


def _weight(problem: Problem, rule: Rule, uses: Bools) -> Floats:
    """w(q, k) for each kind, with which an atom of these users scores sum_d w b^2."""
    total = problem.prior_precision + _precision(problem, uses)
    if not rule.eps:
        return -1 / total
    pull = rule.eps * _stiffness(problem, rule, uses)
    if rule.kl == "joint":
        return -1 / (total + pull)
    return -1 / total + pull / total**2


def _squares(problem: Problem, values: Floats) -> Floats:
    """Sums of squares over the coordinates of each kind."""
    sums: Floats = (values * values) @ problem.is_kind
    return sums


def _precision(problem: Problem, uses: Bools) -> Floats:
    return uses.astype(np.float64) @ problem.precision


def _stiffness(problem: Problem, rule: Rule, uses: Bools) -> Floats:
    stiffness = DIVERGENCES[rule.divergence](problem.prior_precision, problem.precision)
    return uses.astype(np.float64) @ stiffness


def _log_odds(problem: Problem, rule: Rule, counts: Ints) -> Floats:
    cap = PRESETS[rule.preset].odds_cap
    capped = counts if cap is None else np.minimum(counts, cap)
    return np.log(capped / (problem.num_clients - capped))


def _new_columns(rule: Rule, neurons: int, atoms: int) -> int:
    limit = PRESETS[rule.preset].max_atoms
    return neurons if limit is None else min(neurons, max(limit - atoms, 1))
