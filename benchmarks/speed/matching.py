"""Speed of neural matching: processor seconds of a sweep, and of the row-by-row cost beside it.

Clients hold noisy copies of a share of common neurons, the rest are their own, in random order.

    python benchmarks/speed/matching.py [--share 0.5]
"""

import argparse
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.keys import Key
from fedsieve.matching import Matching, Settings, match_networks, visiting_orders
from fedsieve.matching.assign import collect, remove
from fedsieve.matching.atoms import class_shares, layer_problem, read_networks
from fedsieve.matching.costs import Rule, cost

SWEEPS, CLASSES, INPUTS = 5, 10, 784


class Size(NamedTuple):
    clients: int
    neurons: int
    limit_seconds: float  # of one sweep for the first size, of all for the second
    is_per_sweep: bool


SIZES = (Size(10, 100, 1.0, is_per_sweep=True), Size(20, 500, 30.0, is_per_sweep=False))


def clients_of(size: Size, share: float) -> list[list[NDArray[np.float64]]]:
    """Networks with one hidden layer; weights as small as trained ones."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(INPUTS + 1 + CLASSES, size.neurons))
    networks = []
    for _ in range(size.clients):
        own = common + 0.3 * rng.normal(size=common.shape)
        is_own = rng.random(size.neurons) > share
        own[:, is_own] = rng.normal(size=(len(own), int(is_own.sum())))
        own = 0.3 * own[:, rng.permutation(size.neurons)]
        networks.append([own[:INPUTS], own[INPUTS], own[INPUTS + 1 :].T, np.zeros(CLASSES)])
    return networks


def timed(size: Size, share: float) -> tuple[Matching, float, float]:
    """The matching, seconds of the greedy pass, and seconds of all sweeps."""
    networks, counts = clients_of(size, share), np.ones((size.clients, CLASSES))
    taken = []
    for sweeps in (0, SWEEPS):
        orders = visiting_orders(Key(0), 1, sweeps, size.clients)
        started = time.process_time()
        matching = match_networks(networks, counts, Settings(sigma2=0.1), orders)
        taken.append(time.process_time() - started)
    return matching, taken[0], taken[1] - taken[0]


def row_by_row(size: Size, share: float) -> float:
    """How many times as long the cost of one client takes with a loop over its neurons."""
    networks = read_networks(clients_of(size, share))
    shares = class_shares(None, size.clients, CLASSES)
    variances = Settings(sigma2=0.1).variances(1)[0]
    problem = layer_problem(networks, 0, None, shares, variances, "full", 0.1)
    labels = {c: np.arange(size.neurons) + c * size.neurons // 3 for c in range(size.clients)}
    atoms = remove(problem, collect(problem, labels), 0).atoms
    started = time.process_time()
    whole = cost(problem, Rule(), atoms, 0)
    vectorised = time.process_time() - started
    started = time.process_time()
    precision = (problem.prior_precision + atoms.uses @ problem.precision)[:, problem.kinds]
    own = problem.precision[0][problem.kinds]
    before = (atoms.sums**2 / precision).sum(1)
    counts = atoms.counts
    odds = 2 * np.log(counts / (size.clients - counts))
    rows = [before - ((atoms.sums + u) ** 2 / (precision + own)).sum(1) for u in problem.shifted[0]]
    looped = time.process_time() - started
    assert np.allclose(np.array(rows) - odds, whole[:, : len(odds)])
    return looped / vectorised


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.5, help="share of common neurons")
    share = parser.parse_args().share
    for size in SIZES:
        matching, greedy, sweeps = timed(size, share)
        measured = sweeps / SWEEPS if size.is_per_sweep else greedy + sweeps
        what = "a sweep" if size.is_per_sweep else f"greedy pass and {SWEEPS} sweeps"
        verdict = "met" if measured <= size.limit_seconds else "NOT met"
        print(
            f"matching {size.clients} x {size.neurons} x {INPUTS}: {matching.sizes[0]} atoms, "
            f"greedy {greedy:.2f} s, {what} {measured:.2f} s "
            f"(limit {size.limit_seconds:g} s: {verdict}); "
            f"cost row by row takes {row_by_row(size, share):.1f} times as long"
        )


if __name__ == "__main__":
    main()
