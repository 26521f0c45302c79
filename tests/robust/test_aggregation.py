"""Rules of aggregation against plain programs, on whole and on sparse messages."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round, message_to, method_class
from fedsieve.core.options import read
from fedsieve.methods import fedavg, fediter_ht, fedsparse
from fedsieve.robust.aggregation import AGGREGATIONS, Krum, Median, Replies, TrimmedMean
from small import METHODS, small_job

RULES = ["trimmed_mean(0.2)", "trimmed_mean(0.4)", "median", "geometric_median", "krum(0.4)"]
RULES += ["norm_clipped(1)", "agreement"]
ALONE = ("central", "flops_pa_central", "local_only")  # one client, or nothing is sent
SAME_ENTRIES = [m for m in METHODS if method_class(m).same_entries and m not in ALONE]


def rule_of(text):
    return read(text, AGGREGATIONS, "aggregation")


def dense(rows):
    """A round of replies with one tensor; the broadcast is 0."""
    start = fedavg.Down({"w": torch.zeros(len(rows[0]))}, 0)
    ups = [fedavg.Up({"w": torch.tensor(row, dtype=torch.float32)}, 7) for row in rows]
    return Replies(ups, [start] * len(ups))


def estimate(rule, rows):
    """The mean over the replies that a rule leaves."""
    ups = rule_of(rule).combine(dense(rows))
    return np.mean([up.weights["w"].numpy() for up in ups], axis=0)


ROWS = np.random.default_rng(3).normal(size=(10, 6)) * 3


def test_by_entry_the_estimates_are_those_of_scipy_and_numpy():
    assert estimate("trimmed_mean(0.2)", ROWS) == pytest.approx(
        stats.trim_mean(ROWS, 0.2), abs=1e-6
    )
    assert estimate("trimmed_mean(0.4)", ROWS) == pytest.approx(
        stats.trim_mean(ROWS, 0.4), abs=1e-6
    )
    assert estimate("median", ROWS) == pytest.approx(np.median(ROWS, axis=0), abs=1e-6)
    assert estimate("median", ROWS[:7]) == pytest.approx(np.median(ROWS[:7], axis=0), abs=1e-6)
    assert estimate("mean", ROWS) == pytest.approx(ROWS.mean(axis=0), abs=1e-6)


def test_the_geometric_median_has_the_least_sum_of_distances():
    def total(point):
        return np.linalg.norm(ROWS - point, axis=1).sum()

    best = optimize.minimize(total, ROWS.mean(axis=0), method="Nelder-Mead", tol=1e-10).fun
    ours = total(estimate("geometric_median(steps=200)", ROWS))
    assert ours == pytest.approx(best, rel=1e-5)
    assert total(estimate("geometric_median", ROWS)) == pytest.approx(best, rel=1e-3)


def test_krum_keeps_those_with_the_nearest_neighbours():
    # Squared distances to the 5 - 1 - 2 = 2 nearest: 0: 1+4, 1: 1+1, 2: 1+4, 9: 49+64, 20: 121+324.
    rows = [[0.0], [1.0], [2.0], [9.0], [20.0]]
    found = Krum(attackers=0.2, keep=1).combine(dense(rows))
    assert [up.weights["w"].item() for up in found] == [1]
    found = Krum(attackers=0.2).combine(dense(rows))
    assert [up.weights["w"].item() for up in found] == [0, 1, 2, 9]


def test_norm_clipped_shortens_what_is_longer_than_the_median():
    rows = [[3.0, 4.0], [0.0, 1.0], [0.0, 10.0]]  # lengths 5, 1, 10
    assert estimate("norm_clipped(1)", rows) == pytest.approx([1, (4 + 1 + 5) / 3])


def test_agreement_leaves_out_who_points_elsewhere_and_nobody_else():
    honest = [[1.0, 0.5], [1.0, -0.5], [1.0, 0.2], [1.0, -0.2]]
    kept = rule_of("agreement").combine(dense([*honest, [-1.0, 0.1]]))
    assert len(kept) == 4
    assert all(up.weights["w"][0] == 1 for up in kept)
    assert len(rule_of("agreement").combine(dense(honest))) == 4
    opposed = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    assert rule_of("agreement").combine(dense(opposed))


def sparse(rows):
    """A round of replies of FedIter-HT with one tensor; None is what was not sent."""
    values = torch.tensor([[x or 0.0 for x in row] for row in rows])
    bits = torch.tensor([[x is not None for x in row] for row in rows])
    ups = [fediter_ht.Up({"w": b}, {"w": v}, 7) for b, v in zip(bits, values, strict=True)]
    nothing = {"w": torch.zeros(len(rows[0]))}
    down = fediter_ht.Down({"w": torch.ones(len(rows[0]), dtype=torch.bool)}, nothing, 0)
    return Replies(ups, [down] * len(ups))


@pytest.mark.parametrize("senders", [4, 5, 7, 10])
def test_an_entry_that_some_send_keeps_its_share_of_senders(senders):
    rows = [[2.0] if k < senders else [None] for k in range(10)]
    ups = TrimmedMean(0.2).combine(sparse(rows))
    share = senders / 10 if 2 < senders < 8 else 1.0
    assert sum(up.mask["w"].item() for up in ups) == round(10 * share)
    assert np.mean([up.weights["w"].item() for up in ups]) == pytest.approx(2 * share)


def test_an_entry_that_only_liars_send_is_sent_by_nobody():
    rows = [[1.0, 1e9] if k < 2 else [1.0, None] for k in range(10)]
    for rule in (TrimmedMean(0.2), Median()):
        ups = rule.combine(sparse(rows))
        assert all(up.mask["w"].tolist() == [True, False] for up in ups)
        assert all(up.weights["w"].tolist() == [1.0, 0.0] for up in ups)


@pytest.mark.parametrize("rule", RULES)
def test_a_tensor_that_some_masks_do_not_name_was_sent_whole_by_those(rule):
    ups, downs = sparse([[2.0, None]] * 9 + [[2.0, 0.0]])
    for odd in (0, 9):  # wherever it stands among the others
        mixed = [up._replace(mask={}) if k == odd else up for k, up in enumerate(ups)]
        combined = rule_of(rule).combine(Replies(mixed, downs))
        assert all(up.weights["w"].tolist() == [2.0, 0.0] for up in combined), odd


@pytest.mark.parametrize("rule", ["trimmed_mean(0.4)", "median", "geometric_median"])
def test_a_tensor_that_some_replies_lack_is_estimated_over_the_others(rule):
    ups, downs = sparse([[3.0, 1.0]] * 10)
    short = [up._replace(mask={}, weights={}) if k < 3 else up for k, up in enumerate(ups)]
    combined = rule_of(rule).combine(Replies(short, downs))
    assert [up.weights for up in combined[:3]] == [{}] * 3
    for up in combined[3:]:
        assert up.weights["w"].tolist() == pytest.approx([3.0, 1.0])


@pytest.mark.parametrize("rule", [TrimmedMean(0.2), TrimmedMean(0.4), Median()])
def test_liars_move_no_entry_beyond_what_honest_clients_send(rule):
    rng = np.random.default_rng(0)
    for _ in range(20):
        honest = [
            [x if rng.random() < 0.6 else None for x in rng.normal(size=30)] for _ in range(8)
        ]
        liars = [[s * 1e9 if rng.random() < 0.5 else None for s in rng.choice([-1, 1], 30)]] * 2
        found = torch.stack([up.weights["w"] for up in rule.combine(sparse(honest + liars))])
        low = [min(0, *(row[j] or 0 for row in honest)) for j in range(30)]
        high = [max(0, *(row[j] or 0 for row in honest)) for j in range(30)]
        # An estimate over the share of senders: at most all kept replies by one of them.
        kept = 10 - 2 * int(getattr(rule, "trim", 0.4) * 10)
        mean = found.mean(0)
        assert (mean >= kept * torch.tensor(low) - 1e-6).all()
        assert (mean <= kept * torch.tensor(high) + 1e-6).all()


def test_gates_of_groups_are_voted_on():
    """FedSparse: one bit for each filter, whose mean the server takes as its probability."""
    ups = [
        fedsparse.Up(
            {"w": torch.tensor([[[k < 1]], [[k < 5]], [[k < 9]]])},
            {"w": torch.ones(3, 2, 2) * torch.tensor([k < 1, k < 5, k < 9])[:, None, None]},
            7,
        )
        for k in range(10)
    ]
    found = TrimmedMean(0.2).combine(Replies(ups, [()] * 10))
    shares = torch.stack([up.gates["w"].float() for up in found]).mean(0)
    assert shares.flatten().tolist() == [0, 0.5, 1]
    assert torch.stack([up.weights["w"] for up in found]).mean(0)[:, 0, 0].tolist() == [0, 0.5, 1]


@cache
def round_of(name, count=5):
    """One honest round of a method: server, replies, broadcasts."""
    job = small_job(method=name, clients=count, rounds=3)
    method, key = job.method, fold(0, "init")
    server = method.init_server(key)
    ups, downs = [], []
    for client in range(job.federation.num_clients):
        down = message_to(client, method.broadcast(server, key))
        state, data = method.init_client(client, key), job.federation.batches(client)
        up, *_ = method.client_update(down, state, data, fold(1, client))
        ups.append(up)
        downs.append(down)
    return method, server, Replies(ups, downs)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SAME_ENTRIES)
def test_equal_replies_stay_as_they_are(name, rule):
    method, server, replies = round_of(name)
    up = replies.ups[0]
    same = Replies([up] * 5, [replies.downs[0]] * 5)
    found = rule_of(rule).combine(same)
    for left in found:
        for (path, a), (_, b) in zip(tree.leaves(left), tree.leaves(up), strict=True):
            assert torch.allclose(torch.as_tensor(a), torch.as_tensor(b), atol=1e-6), path
    method.server_update(server, Round(found), fold(0, "server"))


@pytest.mark.parametrize("rule", ["trimmed_mean(0.2)", "median", "agreement"])
@pytest.mark.parametrize("name", SAME_ENTRIES)
def test_one_liar_of_five_cannot_carry_the_server_away(name, rule):
    method, server, replies = round_of(name)
    honest = method.server_update(server, Round(rule_of(rule).combine(replies)), fold(0, "server"))
    lie = tree.map_leaves(
        lambda x: x * 1e12 if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
        replies.ups[0],
    )
    forged = Replies([lie, *replies.ups[1:]], replies.downs)
    after = method.server_update(server, Round(rule_of(rule).combine(forged)), fold(0, "server"))
    largest = max(
        (a - b).abs().max().item()
        for (path, a), (_, b) in zip(tree.leaves(after), tree.leaves(honest), strict=True)
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel()
        if "moments" not in path
    )
    assert largest < 10


@pytest.mark.parametrize("name", ["pfnm", "gpi_fnm", "feddrop", "fedmix"])
def test_rules_by_entry_are_refused_where_entries_differ(name):
    with pytest.raises(ConfigError, match=r"mean something else for each client.*norm_clipped"):
        small_job(method=name, aggregation="median")
    if name != "fedmix":  # a broadcast has all components, a reply one of them
        small_job(method=name, aggregation="norm_clipped(2)")


def test_what_cannot_be_is_refused():
    for text in ("trimmed_mean(0.5)", "krum(0.5)", "median(1)", "geometric_median(0)", "medium"):
        with pytest.raises(ConfigError, match=r"aggregation|trim|krum|steps"):
            small_job(aggregation=text)
    with pytest.raises(ConfigError, match="no updates"):
        small_job(method="local_only", clip_update="fixed(1)")
