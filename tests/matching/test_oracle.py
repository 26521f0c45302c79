"""The vectorised matching equals the slow one of tests/oracle in every mode."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fedsieve.matching import Settings, match, match_networks
from fedsieve.matching.assign import cheapest, collect, log_orders, match_layer, place, remove
from fedsieve.matching.costs import Atoms, Rule, cost, energy, problem_of
from oracle.slow_matching import Layer, layers_of

MODES = [
    {"eps": eps, "kl": kl, "preset": preset}
    for eps, kl, preset in itertools.product(
        (0.0, 0.3), ("plugin", "joint"), ("paper", "pfnm-code")
    )
]


def networks(rng, num_clients, depth, *, widths=(3, 6), scale=1.0, blocks=None):
    """Random networks with hidden widths of their own, 4 inputs and 3 classes."""
    found = []
    for _ in range(num_clients):
        sizes = [4, *rng.integers(*widths, size=depth), 3]
        found.append([])
        for (a, b), block in zip(itertools.pairwise(sizes), blocks or [1] * 9, strict=False):
            found[-1] += [scale * rng.normal(size=(a * block, b)), 0.1 + scale * rng.normal(size=b)]
    return found


def assert_equal(ours, labels, network):
    """Our matching has the labels and weights of the slow one."""
    for mine, theirs in zip(ours.assignments, labels, strict=True):
        for own, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(own, other)
    for mine, theirs in zip(ours.global_weights, network, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10)


def counts_of(rng, num_clients, classes=3):
    counts = rng.integers(0, 30, size=(num_clients, classes))
    counts[:, 0] = 0  # a class nobody owns
    return counts


def orders_of(rng, depth, sweeps, num_clients):
    return [np.array([rng.permutation(num_clients) for _ in range(sweeps)]) for _ in range(depth)]


def objective(problem, rule, state, client):
    return energy(problem, rule, state.atoms) + log_orders(state, client)


def random_layer(rng, *, precision=(0.0, 2.0), widths=(2, 5), num_clients=4, size=5):
    """The same layer for both sides."""
    neurons = [rng.normal(size=(w, size)) for w in rng.integers(*widths, size=num_clients)]
    lams = rng.uniform(*precision, size=(num_clients, size))
    m0, lam0 = rng.normal(size=size), rng.uniform(0.5, 2, size=size)
    lams[:, 1] = lams[:, 0]  # two coordinates of one kind
    lam0[1] = lam0[0]
    return neurons, list(lams), m0, lam0, problem_of(neurons, lams, m0, lam0)


@pytest.mark.parametrize("padding", ["full", "zero"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_labels_and_weights_equal_the_slow_ones(depth, mode, padding):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        num_clients = int(rng.integers(2, 5))
        clients = networks(rng, num_clients, depth)
        counts = counts_of(rng, num_clients)
        orders = orders_of(rng, depth, 2, num_clients)
        values = depth if seed else None  # one number for all layers, then one for each
        settings = {
            **mode,
            "sigma2": rng.uniform(0.2, 1.5, size=values),
            "sigma0_2": rng.uniform(0.5, 3, size=values),
            "gamma0": rng.uniform(0.1, 5, size=values),
            "eps": mode["eps"] * rng.uniform(0.5, 1.5, size=values),
            "padding": padding,
        }
        ours = match(clients, class_counts=counts, orders=orders, **settings)
        assert_equal(ours, *layers_of(clients, counts, orders, **settings))


@pytest.mark.parametrize("padding", ["full", "zero"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_channels_of_several_rows_are_matched_as_by_the_slow_one(mode, padding):
    blocks = (1, 4, 3, 1)
    for seed in range(2):
        rng = np.random.default_rng([7, seed])
        clients = networks(rng, 3, 3, widths=(2, 5), scale=0.7, blocks=blocks)
        counts, orders = counts_of(rng, 3), orders_of(rng, 3, 2, 3)
        settings = Settings(**mode, padding=padding)
        ours = match_networks(clients, counts, settings, orders, blocks=blocks)
        expected = layers_of(clients, counts, orders, **mode, padding=padding, blocks=blocks)
        assert_equal(ours, *expected)


@pytest.mark.parametrize("seed", range(12))
def test_more_than_ten_clients_meet_the_cap_of_the_program(seed):
    rng = np.random.default_rng([3, seed])
    num_clients = 12 + seed % 3
    clients = networks(rng, num_clients, 1, widths=(2, 4), scale=0.6)
    counts, orders = counts_of(rng, num_clients), orders_of(rng, 1, 2, num_clients)
    ours = match(clients, class_counts=counts, orders=orders, preset="pfnm-code")
    assert ours.counts[0].max() > 10
    assert_equal(ours, *layers_of(clients, counts, orders, preset="pfnm-code"))


@pytest.mark.parametrize(
    "divergence", ["kl", "reverse_kl", "jeffreys", "bhattacharyya", "wasserstein"]
)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_costs_and_energy_equal_direct_evaluation(mode, divergence):
    rng = np.random.default_rng(5)
    *data, problem = random_layer(rng, precision=(0.1, 2.0))
    slow = Layer(*data, gamma0=0.7, divergence=divergence, **mode)
    rule = Rule(gamma0=0.7, divergence=divergence, **mode)
    atoms = slow.match([])
    state = collect(problem, {s: slow.labels(atoms, s) for s in range(4)})
    assert energy(problem, rule, state.atoms) == pytest.approx(slow.energy(atoms), abs=1e-10)
    for s in range(4):
        others = [kept for m in atoms if (kept := [x for x in m if x[0] != s])]
        ours = cost(problem, rule, remove(problem, state, s).atoms, s)
        expected = slow.cost(others, s)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)
        mine = objective(problem, rule, state, s)
        assert mine == pytest.approx(slow.objective(atoms, s), abs=1e-10)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_rematching_never_raises_the_objective_and_reaches_the_optimum_of_all_placements(mode):
    """Every injective placement of one client is tried on tiny layers."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        *data, problem = random_layer(rng, widths=(2, 4), num_clients=3, size=3)
        slow, rule = Layer(*data, **mode), Rule(**mode)
        order = orders_of(rng, 1, 2, 3)[0]
        matched = match_layer(problem, rule, order)
        for step in matched.steps:
            assert step.after <= step.before + 1e-9
        state = collect(problem, dict(enumerate(matched.labels)))
        for s in range(3):
            others = remove(problem, state, s)
            best = objective(problem, rule, place(problem, rule, others, s), s)
            size, width = len(others.atoms.sums), len(problem.shifted[s])
            members = [
                [(t, j) for t in range(3) if t != s for j in np.flatnonzero(others.labels[t] == i)]
                for i in range(size)
            ]
            found = []
            for choice in itertools.product(range(size + 1), repeat=width):
                used = [c for c in choice if c < size]
                if len(set(used)) < len(used):
                    continue
                atoms = [list(m) for m in members]
                for j, c in enumerate(choice):
                    atoms[c].append((s, j)) if c < size else atoms.append([(s, j)])
                found.append(slow.objective(atoms, s))
            assert best == pytest.approx(min(found), abs=1e-9)


def test_the_objective_falls_where_clients_keep_many_atoms_to_themselves():
    """Then F alone may rise, and 2 log(K_s!) is what makes up for it."""
    rises = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        *_, problem = random_layer(rng, widths=(3, 7), num_clients=4)
        rule, order = Rule(gamma0=20.0), orders_of(rng, 1, 4, 4)[0]
        state = collect(problem, dict(enumerate(match_layer(problem, rule, order[:0]).labels)))
        for s in order.ravel():
            after = place(problem, rule, remove(problem, state, s), s)
            rises += energy(problem, rule, after.atoms) > energy(problem, rule, state.atoms) + 1e-9
            gain = objective(problem, rule, after, s) - objective(problem, rule, state, s)
            assert gain <= 1e-9
            state = after
    assert rises


def test_with_equal_scalar_variances_the_kl_cost_is_equation_11():
    """(11) prints |sum (w - mu0)/sigma^3|^2 / (1/sigma0^2 + n/sigma^2)^2 times n and n + 1."""
    rng = np.random.default_rng(0)
    sigma2, sigma0_2, eps, size = 0.4, 1.7, 0.3, 6
    neurons = [rng.normal(size=(3, size)) for _ in range(4)]
    lam, lam0 = np.full((4, size), 1 / sigma2), np.full(size, 1 / sigma0_2)
    problem = problem_of(neurons, lam, np.zeros(size), lam0)
    atoms = collect(problem, {s: np.arange(3) for s in range(3)}).atoms
    plain, kl = (cost(problem, Rule(eps=e), atoms, 3) for e in (0.0, eps))

    def printed(vectors):
        n = len(vectors)
        inside = sum(w / sigma2**1.5 for w in vectors) / (1 / sigma0_2 + n / sigma2)
        return n * (inside**2).sum()

    for j, i in itertools.product(range(3), range(3)):
        held = [neurons[s][i] for s in range(3)]
        rise = printed([*held, neurons[3][j]]) - printed(held)
        assert kl[j, i] - plain[j, i] == pytest.approx(eps * rise, abs=1e-12)
        alone = printed([neurons[3][j]])
        assert kl[j, 3 + i] - plain[j, 3 + i] == pytest.approx(eps * alone, abs=1e-12)


def test_the_program_s_unshifted_sums_differ_by_a_constant_in_each_row():
    _, lams, m0, lam0, problem = random_layer(np.random.default_rng(8))
    state = collect(problem, {s: np.arange(len(problem.shifted[s])) for s in range(3)})
    u, lam = problem.shifted[3], lams[3]
    total = lam0 + state.atoms.uses @ np.array(lams)
    eta = state.atoms.sums + m0 * total
    scaled = u + lam * m0  # lam_s * w_sj
    merged = (eta[None] + scaled[:, None]) ** 2 / (total + lam)
    theirs = (eta**2 / total - merged).sum(2)
    counts = state.atoms.counts
    theirs -= 2 * np.log(counts / (4 - counts))
    ours = cost(problem, Rule(), state.atoms, 3)[:, : len(eta)]
    np.testing.assert_allclose(np.ptp(ours - theirs, axis=1), 0, atol=1e-10)


def offers(rng, rows, used, *, new=None):
    """A cost matrix as `cost` makes them: atoms, and new ones that rise by 2 log k in every row."""
    number = np.arange(1, (rows if new is None else new) + 1)
    alone = rng.normal(size=(rows, 1)) - rng.uniform(0, 6)
    return np.hstack([3 * rng.normal(size=(rows, used)), alone + 2 * np.log(number)])


def by_the_solver(costs, used):
    """Its choice on the whole matrix; which of the new columns a row takes is only a name."""
    return np.minimum(linear_sum_assignment(costs)[1], used)


def test_sparing_the_solver_hopeless_pairs_changes_no_choice():
    rng = np.random.default_rng(9)
    joined, opened = 0, 0
    for rows, used in itertools.product((1, 4, 15), (0, 1, 3, 12, 40)):
        for _ in range(20):
            costs = offers(rng, rows, used)
            found = cheapest(costs, used)
            np.testing.assert_array_equal(found, by_the_solver(costs, used))
            joined, opened = joined + (found < used).sum(), opened + (found == used).sum()
    assert min(joined, opened) > 500


def test_with_fewer_new_columns_than_neurons_all_atoms_are_offered():
    rng = np.random.default_rng(10)
    for _ in range(20):
        costs = offers(rng, 6, 9, new=2)
        costs[:, :9] += 9  # as few as possible would join
        found = cheapest(costs, 9)
        np.testing.assert_array_equal(found, by_the_solver(costs, 9))
        assert (found == 9).sum() <= 2


def test_equal_neurons_and_equal_atoms_are_told_apart_as_by_the_solver():
    """Ties: all optima are right, but whoever solves the whole matrix finds this one."""
    rng = np.random.default_rng(11)
    for _ in range(1000):
        costs = offers(rng, 6, 15)
        costs[:, rng.integers(0, 15, size=12)] = costs[:, rng.integers(0, 15, size=12)]
        costs[rng.integers(0, 6, size=3)] = costs[rng.integers(0, 6, size=3)]
        np.testing.assert_array_equal(cheapest(costs, 15), by_the_solver(costs, 15))


def test_removing_and_placing_back_restores_the_atoms():
    *_, problem = random_layer(np.random.default_rng(1))
    rule = Rule()
    greedy = match_layer(problem, rule, np.zeros((0, 4), int)).labels
    state = collect(problem, dict(enumerate(greedy)))
    for s in range(4):
        once = place(problem, rule, remove(problem, state, s), s)
        again = place(problem, rule, remove(problem, once, s), s)
        np.testing.assert_allclose(again.atoms.sums, once.atoms.sums, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(again.atoms.uses, once.atoms.uses)
        for t in range(4):
            np.testing.assert_array_equal(again.labels[t], once.labels[t])


def test_a_warm_start_goes_on_from_given_labels():
    rng = np.random.default_rng(2)
    clients, counts = networks(rng, 3, 2), counts_of(rng, 3)
    first = match(clients, class_counts=counts, sweeps=2)
    gaps = [[10 + 3 * own for own in labels] for labels in first.assignments]
    none = [np.zeros((0, 3), int)] * 2
    again = match_networks(clients, counts, Settings(), none, start=gaps)
    for mine, theirs in zip(again.global_weights, first.global_weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
    moved = [[w + 0.01 * rng.normal(size=w.shape) for w in net] for net in clients]
    order = orders_of(rng, 2, 3, 3)
    warm = match_networks(moved, counts, Settings(), order, start=first.assignments)
    for steps in (layer.steps for layer in warm.layers):
        assert all(step.after <= step.before + 1e-9 for step in steps)


def test_atoms_know_their_users():
    atoms = Atoms(np.zeros((2, 1)), np.array([[True, False, True], [False, True, False]]))
    assert atoms.counts.tolist() == [2, 1]
