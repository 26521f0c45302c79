"""What a matching promises: planted networks are found again, labels are only names."""

import itertools
import warnings

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key
from fedsieve.matching import Matching, Settings, match, match_networks, visiting_orders
from fedsieve.matching.assign import collect
from fedsieve.matching.atoms import class_shares, subnetwork
from fedsieve.matching.costs import Rule, cost, problem_of


def planted(rng, widths, *, inputs=20, classes=4, scale=1.5):
    sizes = [inputs, *widths, classes]
    net = []
    for a, b in itertools.pairwise(sizes):
        net += [scale * rng.normal(size=(a, b)), scale * rng.normal(size=b)]
    return net


def shuffled(rng, net, *, kept=None, noise=0.0):
    """A client with the given (or all) neurons of `net` in an order of its own, and their names."""
    labels = [rng.permutation(len(b)) for b in net[1:-1:2]]
    if kept is not None:
        labels = [own[:k] for own, k in zip(labels, kept, strict=True)]
    return [w + noise * rng.normal(size=w.shape) for w in subnetwork(net, labels)], labels


def same_partition(found, planted_labels):
    """Whether labels agree up to the names of atoms."""
    pairs = {
        (int(a), int(b))
        for mine, theirs in zip(found, planted_labels, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    }
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def canonical(labels):
    """Atoms named in order of first appearance."""
    names = {}
    return [[names.setdefault(int(a), len(names)) for a in own] for own in labels]


@pytest.mark.parametrize("num_clients", [5, 9, 14])
@pytest.mark.parametrize("widths", [(12,), (10, 8), (9, 8, 7), (8, 7, 7, 6, 6, 5)])
@pytest.mark.parametrize("preset", ["paper", "pfnm-code"])
def test_permuted_copies_are_matched_and_shrunken(widths, num_clients, preset):
    rng = np.random.default_rng(num_clients)
    net = planted(rng, widths)
    clients, labels = zip(*(shuffled(rng, net) for _ in range(num_clients)), strict=True)
    counts = rng.integers(1, 50, size=(num_clients, 4))
    matched = match(clients, class_counts=counts, preset=preset, sigma2=0.5, sigma0_2=10)
    assert matched.sizes == widths
    for layer in range(len(widths)):
        assert same_partition(matched.assignments[layer], [own[layer] for own in labels])
        assert matched.counts[layer].tolist() == [num_clients] * widths[layer]
    # theta = (S / sigma2 w + prior mean / sigma0_2) / (S / sigma2 + 1 / sigma0_2), a client's order
    first = matched.subnetwork(0)
    evidence = num_clients / 0.5
    np.testing.assert_allclose(first[0], clients[0][0] * evidence / (evidence + 0.1), atol=1e-12)
    bias = (clients[0][1] * evidence + 0.1 * 0.1) / (evidence + 0.1)
    np.testing.assert_allclose(first[1], bias, atol=1e-12)
    # shares of a class sum to 1, whoever holds it
    out = clients[0][-2] * 2 / (2 + 0.1)
    np.testing.assert_allclose(first[-2], out, atol=1e-12)
    np.testing.assert_allclose(first[-1], (clients[0][-1] * 2 + 0.1 * 0.1) / 2.1, atol=1e-12)


@pytest.mark.parametrize("widths", [(16,), (16, 12), (14, 14, 12)])
def test_subsets_of_a_planted_network_are_found_again_with_zero_padding(widths):
    """Unequal widths: every client holds some of the neurons, with noise."""
    rng = np.random.default_rng(len(widths))
    net = planted(rng, widths, classes=10)
    kept = [[int(rng.integers(w // 2, w + 1)) for w in widths] for _ in range(9)]
    made = [shuffled(rng, net, kept=own, noise=0.05) for own in kept]
    clients, labels = zip(*made, strict=True)
    settings = {"sigma2": 0.05, "sigma0_2": 1.5**2, "padding": "zero"}
    matched = match(clients, class_counts=np.full((9, 10), 10), **settings)
    assert matched.sizes == widths
    for layer in range(len(widths)):
        assert same_partition(matched.assignments[layer], [own[layer] for own in labels])
    for s, client in enumerate(clients):
        assert [w.shape for w in matched.subnetwork(s)] == [w.shape for w in client]


def test_paddings_agree_when_no_client_lacks_a_neuron_above():
    rng = np.random.default_rng(0)
    net = planted(rng, (8, 6))
    clients = [shuffled(rng, net, noise=0.1)[0] for _ in range(5)]
    counts = rng.integers(1, 9, size=(5, 4))
    full, zero = (match(clients, class_counts=counts, padding=p) for p in ("full", "zero"))
    assert full.sizes == zero.sizes == (8, 6)
    for a, b in zip(full.global_weights, zero.global_weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", [{}, {"eps": 0.3}, {"eps": 2.0, "kl": "joint"}], ids=str)
def test_the_order_of_a_client_s_neurons_changes_labels_alone(mode):
    rng = np.random.default_rng(4)
    clients = [planted(rng, (6, 5), scale=0.6) for _ in range(4)]
    counts = rng.integers(1, 9, size=(4, 4))
    orders = visiting_orders(Key(1), 2, 3, 4)
    before = match(clients, class_counts=counts, orders=orders, **mode)
    permuted, names = shuffled(rng, clients[2])
    after = match([*clients[:2], permuted, clients[3]], class_counts=counts, orders=orders, **mode)
    assert after.sizes == before.sizes
    for layer in range(2):
        expected = [*before.assignments[layer]]
        expected[2] = expected[2][names[layer]]
        assert same_partition(after.assignments[layer], expected)
    assert after.objective == pytest.approx(before.objective, abs=1e-9)
    # one hidden function: the same outputs
    x = rng.normal(size=(7, 20))
    np.testing.assert_allclose(run(after.global_weights, x), run(before.global_weights, x))


def run(net, x):
    for layer in range(0, len(net), 2):
        x = x @ net[layer] + net[layer + 1]
        x = np.maximum(x, 0) if layer + 2 < len(net) else x
    return x


def test_names_of_clients_do_not_matter_beyond_the_order_of_visits():
    rng = np.random.default_rng(6)
    clients = [planted(rng, (w,), scale=0.5) for w in (7, 5, 4)]
    counts = rng.integers(1, 9, size=(3, 4))
    orders = visiting_orders(Key(2), 1, 4, 3)
    turn = np.array([2, 0, 1])  # new client i is old client turn[i]
    where = np.argsort(turn)
    old = match(clients, class_counts=counts, orders=orders)
    new = match([clients[i] for i in turn], class_counts=counts[turn], orders=[where[orders[0]]])
    assert new.sizes == old.sizes
    back = [new.assignments[0][where[s]] for s in range(3)]
    assert canonical(back) == canonical(old.assignments[0])


def test_a_heavy_mass_keeps_all_apart_and_a_light_one_merges_all_that_can_be():
    rng = np.random.default_rng(7)
    clients = [planted(rng, (w,)) for w in (5, 8, 3, 6)]
    counts = np.ones((4, 4))
    assert match(clients, class_counts=counts, gamma0=1e200).sizes == (22,)
    assert match(clients, class_counts=counts, gamma0=1e-200).sizes == (8,)


@pytest.mark.parametrize("sweeps", [0, 2])
@pytest.mark.parametrize("widths", [(6,), (5, 7)])
def test_one_client_returns_itself(widths, sweeps):
    net = planted(np.random.default_rng(8), widths)
    counts = np.array([[3, 0, 1, 2]])  # nobody owns class 1: its share is 1 / S = 1
    matched = match([net], class_counts=counts, sweeps=sweeps, sigma0_2=1e12)
    assert matched.sizes == widths
    for mine, own in zip(matched.subnetwork(0), net, strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-9, atol=1e-9)


def test_the_greedy_pass_starts_with_the_widest_client_ties_by_index():
    rng = np.random.default_rng(9)
    clients = [planted(rng, (w,)) for w in (4, 6, 6)]
    matched = match(clients, class_counts=np.ones((3, 4)), sweeps=0, gamma0=1e200)
    assert matched.assignments[0][1].tolist() == list(range(6))  # client 1 first, then 2, then 0
    assert matched.assignments[0][2].tolist() == list(range(6, 12))
    assert matched.assignments[0][0].tolist() == list(range(12, 16))


def test_sweeps_of_zero_is_the_greedy_pass_also_when_orders_are_given():
    rng = np.random.default_rng(10)
    clients = [planted(rng, (5,), scale=0.4) for _ in range(3)]
    orders = visiting_orders(Key(0), 1, 5, 3)
    alone = match(clients, class_counts=np.ones((3, 4)), sweeps=0, orders=orders)
    assert alone.layers[0].steps == []
    swept = match(clients, class_counts=np.ones((3, 4)), orders=orders)
    assert [step.client for step in swept.layers[0].steps] == orders[0].ravel().tolist()


def test_one_value_for_each_layer_is_used_in_that_layer():
    rng = np.random.default_rng(11)
    clients = [planted(rng, (5, 4), scale=0.3) for _ in range(4)]
    sizes = match(clients, class_counts=np.ones((4, 4)), gamma0=[1e-200, 1e200]).sizes
    assert sizes == (5, 16)


def test_eps_zero_is_pfnm_bit_for_bit_and_every_divergence_then_the_same():
    rng = np.random.default_rng(12)
    clients = [planted(rng, (5, 4), scale=0.3) for _ in range(4)]
    counts = rng.integers(0, 9, size=(4, 4))
    orders = visiting_orders(Key(3), 2, 2, 4)
    plain = match(clients, class_counts=counts, orders=orders)
    for kl, divergence in itertools.product(("plugin", "joint"), ("kl", "wasserstein")):
        settings = Settings(eps=0.0, kl=kl, divergence=divergence)
        other = match_networks(clients, counts, settings, orders)
        for a, b in zip(plain.global_weights, other.global_weights, strict=True):
            np.testing.assert_array_equal(a, b)


def test_joint_mode_lets_the_penalty_move_the_atoms():
    """One client: theta - m0 = b / (lam0 + lam + eps lam), all 1 but eps."""
    net = planted(np.random.default_rng(13), (3,))
    counts = np.ones((1, 4))
    moved = match([net], class_counts=counts, eps=0.5, kl="joint").subnetwork(0)
    kept = match([net], class_counts=counts, eps=0.5).subnetwork(0)
    np.testing.assert_allclose(moved[0], net[0] / 2.5)
    np.testing.assert_allclose(kept[0], net[0] / 2)


def test_blocks_follow_channels_through_a_flatten():
    """Channels with three positions each: shuffling them is shuffling blocks of rows."""
    rng = np.random.default_rng(14)
    channels, positions, hidden = 6, 3, 5
    net = [
        rng.normal(size=(9, channels)),
        rng.normal(size=channels),
        rng.normal(size=(channels * positions, hidden)),
        rng.normal(size=hidden),
        rng.normal(size=(hidden, 4)),
        rng.normal(size=4),
    ]
    blocks = (1, positions, 1)
    labels = [[rng.permutation(channels), rng.permutation(hidden)] for _ in range(5)]
    clients = [subnetwork(net, own, blocks) for own in labels]
    rows = labels[0][0][:, None] * positions + np.arange(positions)
    np.testing.assert_array_equal(clients[0][2], net[2][rows.ravel()][:, labels[0][1]])
    matched = match_networks(
        clients,
        np.ones((5, 4)),
        Settings(sigma0_2=1e9),
        visiting_orders(Key(0), 2, 2, 5),
        blocks=blocks,
    )
    assert matched.sizes == (channels, hidden)
    for s, client in enumerate(clients):
        for mine, own in zip(matched.subnetwork(s), client, strict=True):
            np.testing.assert_allclose(mine, own, atol=1e-6)


def test_inputs_are_not_changed():
    rng = np.random.default_rng(15)
    clients = [planted(rng, (5, 4)) for _ in range(3)]
    copies = [[w.copy() for w in net] for net in clients]
    match(clients, class_counts=np.ones((3, 4)))
    for net, copy in zip(clients, copies, strict=True):
        for a, b in zip(net, copy, strict=True):
            np.testing.assert_array_equal(a, b)


def test_shares_of_a_class_sum_to_one_also_where_nobody_has_it():
    shares = class_shares([[3, 0], [1, 0]], 2, 2)
    np.testing.assert_array_equal(shares, [[0.75, 0.5], [0.25, 0.5]])
    np.testing.assert_array_equal(class_shares(None, 2, 2), np.ones((2, 2)))


def test_the_program_s_limit_stops_new_atoms_and_refuses_wider_clients():
    rng = np.random.default_rng(16)
    clients = [planted(rng, (300,), inputs=2) for _ in range(4)]
    free = match(clients, class_counts=np.ones((4, 4)), gamma0=1e200, sweeps=0)
    bound = match(clients, class_counts=np.ones((4, 4)), gamma0=1e200, sweeps=0, preset="pfnm-code")
    assert free.sizes == (1200,)
    # 300, 600, 700 and then always one more
    assert bound.sizes == (701,)
    wide = [planted(rng, (701,), inputs=2) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"701 neurons.*preset 'paper'"):
        match(wide, class_counts=np.ones((2, 4)), preset="pfnm-code")


def test_a_matching_prints_as_a_table():
    rng = np.random.default_rng(17)
    net = planted(rng, (6, 5))
    clients = [shuffled(rng, net)[0] for _ in range(3)]
    matched = match(clients, class_counts=np.ones((3, 4)))
    lines = str(matched).splitlines()
    assert isinstance(matched, Matching)
    assert len(lines) == 3
    assert lines[1].split()[:3] == ["1", "6", "6"]
    assert lines[2].endswith("3:5")


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_bad_input_is_refused_with_its_place():
    rng = np.random.default_rng(18)
    good = planted(rng, (3,))
    ones = np.ones((2, 4))

    def refuse(words, clients=(good, good), counts=ones, **settings):
        with pytest.raises(ConfigError, match=words):
            match(list(clients), class_counts=counts, **settings)

    broken = [w.copy() for w in good]
    broken[2][0, 0] = np.nan
    refuse("no clients", clients=[], counts=np.ones((0, 4)))
    refuse("client 1: W1 or b1 is empty or not finite", clients=[good, broken])
    refuse("client 1: inputs, classes or depth", clients=[good, planted(rng, (3,), inputs=9)])
    refuse("client 1: inputs, classes or depth", clients=[good, planted(rng, (3, 2))])
    refuse("at least one hidden layer", clients=[good[:2]], counts=np.ones((1, 3)))
    refuse("W1 needs|not fit", clients=[[good[0], good[1], good[2][:2], good[3]]] * 2)
    refuse("class_counts must be", counts=np.ones((3, 4)))
    refuse("numbers >= 0, found .* from -1", counts=-ones)
    refuse("found 0 arrays", clients=[[], good])
    refuse("W0 of shape \\(\\)", clients=[[np.float64(3), *good[1:]]] * 2)
    refuse("client 1: a weight or bias is no array of real", clients=[good, ["x", *good[1:]]])
    refuse("complex", clients=[[1j * good[0], *good[1:]]] * 2)
    refuse("costs of client 1 overflow", clients=[[1e160 * w for w in good]] * 2)
    refuse("gamma0", gamma0=0)
    refuse("sigma2", sigma2=0)
    refuse("sigma2=inf: must be > 0 and finite", sigma2=np.inf)
    refuse("sigma0_2", sigma0_2=-1)
    refuse("eps", eps=-0.1)
    refuse("gamma0 has 2 values for 1 hidden layers", gamma0=[1, 2])
    refuse("value of preset", preset="papr")
    refuse("value of kl", kl="both")
    refuse("padding", padding="none")
    for sweeps in (-1, 1.5, "many", None):
        refuse("sweeps", sweeps=sweeps)
        refuse("sweeps", sweeps=sweeps, orders=[np.array([[0, 1]])])
    refuse("once", sweeps=0, orders=[np.array([[0, 0]])])
    refuse("orders for 1 hidden", orders=[])
    refuse(r"orders\[0\]", orders=[np.array([[0, 1, 2]])])
    refuse("once", orders=[np.array([[0, 0]])])


def test_a_large_eps_warns_in_plugin_mode_alone():
    net = planted(np.random.default_rng(19), (3,))
    with pytest.warns(UserWarning, match="punishes agreement"):
        match([net], class_counts=np.ones((1, 4)), eps=0.6)
    with warnings.catch_warnings(action="error"):
        match([net], class_counts=np.ones((1, 4)), eps=0.6, kl="joint")
        match([net], class_counts=np.ones((1, 4)), eps=0.5)


def test_equal_neurons_part_at_the_eps_the_specification_derives():
    """Two equal neurons, all variances 1: reward 2 u^2 / 2 (1 - eps/2) alone, 4/3 (1 - 2/3 eps).

    Merging pays while 4/3 - 8/9 eps > 1 - eps/2, that is eps < 6/7 = 0.857.
    """
    u = 1e4 * np.ones((1, 1))  # priors over labels are negligible beside it
    problem = problem_of([u, u], np.ones((2, 1)), np.zeros(1), np.ones(1))
    atoms = collect(problem, {0: np.array([0])}).atoms
    for eps, is_merged in ((0.85, True), (0.864, False)):
        with pytest.warns(UserWarning, match="punishes agreement"):
            rule = Rule(eps=eps)
        _, columns = linear_sum_assignment(cost(problem, rule, atoms, 1))
        assert (columns[0] == 0) == is_merged
