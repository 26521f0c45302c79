"""FedRTS: outcomes of rounds move Beta distributions, from which the mask is drawn."""

import math
import warnings

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round
from fedsieve.methods.fedrts import Belief, Server, Up, _draw
from fedsieve.sparsity import layers
from small import SETTINGS, small_job

BITS = torch.tensor([True, True, True, True, False, False])


def four_of_six(rounds):
    """One layer of six weights, of which four are kept, with flat distributions."""
    ones = {"w": torch.ones(6)}
    return Server({"w": torch.zeros(6)}, {"w": BITS}, Belief(ones, ones), rounds)


def reply(weights, candidates, examples):
    found = {"w": torch.tensor(candidates)} if candidates else {}
    return Up({"w": BITS}, {"w": torch.tensor(weights)}, found, examples)


def method_of(**options):
    defaults = {"every": 2, "until": 4, "churn": 0.5, "voices": 0.5, "evidence": 10.0}
    return small_job(method="fedrts", **defaults | options).method


def two_clients(*, candidates):
    """With 1 and 3 examples; they disagree on the third largest weight, and on candidates."""
    first, second = ([False] * 4 + [True, False], [False] * 4 + [False, True])
    return [
        reply([9.0, 8.0, 1.0, 7.0, 0.0, 0.0], first if candidates else None, 1),
        reply([-9.0, 8.0, 7.0, 1.0, 0.0, 0.0], second if candidates else None, 3),
    ]


def test_outcomes_of_kept_weights_by_hand():
    """In round 1 of 4, int(0.5 * (1 + cos 45 degrees) / 2 * 4) = 1 of 4 weights is in question.

    The mean is (-4.5, 8, 5.5, 2.5): its smallest is the fourth, the first client's the third, the
    second's the fourth. Outcomes are 1/2 (1, 1, 1, 0) + 1/2 (1, 1, 3/4, 1/4).
    """
    after = method_of().server_update(
        four_of_six(0), Round(two_clients(candidates=False)), fold(0, "s")
    )
    assert after.weights["w"].tolist() == [-4.5, 8.0, 5.5, 2.5, 0.0, 0.0]
    assert after.belief.alpha["w"].tolist() == [11, 11, 1 + 8.75, 1 + 1.25, 1, 1]
    assert after.belief.beta["w"].tolist() == [1, 1, 1 + 1.25, 1 + 8.75, 1, 1]
    assert torch.equal(after.mask["w"], BITS)


@pytest.mark.parametrize(
    ("voices", "alpha"),
    [
        (0.0, [11, 11, 11, 1, 6, 6]),  # by the mean of models alone; of others nothing is known
        (1.0, [11, 11, 8.5, 3.5, 3.5, 8.5]),  # by clients' votes alone, with weights 1/4 and 3/4
    ],
)
def test_outcomes_of_candidates_by_hand(voices, alpha):
    """In round 2 of 4, int(0.5 * 0.5 * 4) = 1 is in question, and the mask is adjusted."""
    server = method_of(voices=voices).server_update(
        four_of_six(1), Round(two_clients(candidates=True)), fold(0, "s")
    )
    assert server.belief.alpha["w"].tolist() == pytest.approx(alpha)
    assert server.belief.beta["w"].tolist() == pytest.approx([12 - a for a in alpha])
    assert int(server.mask["w"].sum()) == 4
    assert not server.weights["w"][~server.mask["w"]].any()


def test_with_much_evidence_the_best_are_kept_and_what_grows_starts_at_zero():
    """The sixth weight wins over the fourth: as above, and sure of it."""
    method = method_of(voices=1.0, evidence=1e6)
    after = method.server_update(four_of_six(1), Round(two_clients(candidates=True)), fold(0, "s"))
    assert after.mask["w"].tolist() == [True, True, True, False, False, True]
    assert after.weights["w"].tolist() == [-4.5, 8.0, 5.5, 0.0, 0.0, 0.0]


def test_draws_have_the_mean_and_spread_of_beta_distributions():
    """Beta(3, 1) has mean 3/4 and variance 3 / (16 * 5)."""
    belief = Belief({"w": torch.full((40_000,), 3.0)}, {"w": torch.ones(40_000)})
    drawn = _draw(belief, fold(0, "draw"))["w"]
    assert drawn.mean().item() == pytest.approx(0.75, abs=5 * math.sqrt(3 / 80 / 40_000))
    assert drawn.var().item() == pytest.approx(3 / 80, rel=0.05)


def test_after_the_last_adjustment_mask_and_distributions_stay():
    server = four_of_six(4)
    after = method_of().server_update(server, Round(two_clients(candidates=False)), fold(0, "s"))
    assert tree.equal((after.mask, after.belief), (server.mask, server.belief))
    assert after.weights["w"][3].item() == 2.5


def exchange(rounds, **options):
    job = small_job(method="fedrts", **{"target_density": 0.3, "every": 2, "until": 4} | options)
    method = job.method
    server = method.init_server(fold(0, "init"))._replace(rounds=rounds)
    down = method.broadcast(server, fold(0, "b"))
    data = job.federation.batches(0)
    up, _, metrics = method.client_update(down, (), data, fold(0, "c"))
    return method, server, data, up, metrics


def test_the_first_mask_has_the_largest_weights_of_each_layer():
    method, server, _, _, metrics = exchange(0)
    weights = method.task.init_params(fold(fold(0, "init"), "weights"))
    counts = layers.allocate(method.task.graph, 0.3, "erk")
    assert layers.sizes(server.mask) == counts
    for name, bits in server.mask.items():
        size = weights[name].abs()
        assert bits.all() or size[bits].min() >= size[~bits].max()
    assert tree.equal(metrics.mask, server.mask)


def test_clients_name_the_largest_gradients_outside_the_mask_in_rounds_that_adjust():
    """In round 2 of 4, a tenth of what a layer keeps: 0.2 * 1/2."""
    assert exchange(0)[3].candidates == {}
    method, server, data, up, _ = exchange(1)
    batch = data.draw(fold(fold(0, "c"), "candidates"))
    weights = {n: v.clone().requires_grad_() for n, v in up.weights.items()}
    method.task.loss(weights, batch, fold(0, "any")).backward()
    for name, chosen in up.candidates.items():
        outside = ~server.mask[name]
        wanted = min(int(0.1 * server.mask[name].sum()), int(outside.sum()))
        assert int(chosen.sum()) == wanted
        assert not (chosen & server.mask[name]).any()
        if wanted:
            size = weights[name].grad.abs()
            assert size[chosen].min() >= size[outside & ~chosen].max()
    assert sum(int(c.sum()) for c in up.candidates.values()) > 0


def test_clients_train_and_send_within_the_mask():
    method, server, _, up, _ = exchange(1)
    kept = sum(layers.sizes(server.mask).values())
    assert all(not up.weights[n][~bits].any() for n, bits in server.mask.items())
    assert any((up.weights[n] != server.weights[n]).any() for n in server.mask)
    assert method.paper_bytes(up) == 4 * (kept + 12 + 10)


def test_the_mask_moves_and_keeps_its_size_in_each_layer():
    settings = SETTINGS | {"method": "fedrts", "target_density": 0.3, "until": 3, "every": 1}
    job = small_job(**settings)
    server = job.method.init_server(fold(0, "init"))
    first = server.mask
    for number in range(3):
        down = job.method.broadcast(server, fold(0, "b"))
        data = job.federation.batches(number)
        up, _, _ = job.method.client_update(down, (), data, fold(number, "c"))
        server = job.method.server_update(server, Round([up]), fold(number, "s"))
        assert layers.sizes(server.mask) == layers.sizes(first)
    assert not tree.equal(server.mask, first)


def test_at_full_density_it_is_fedavg():
    ours = fedsieve.run(**SETTINGS | {"method": "fedrts", "target_density": 1.0})
    plain = fedsieve.run(**SETTINGS | {"method": "fedavg"})
    for name, value in plain.model.items():
        torch.testing.assert_close(ours.model[name], value)


def test_adjustments_are_spread_over_the_run_and_none_at_all_is_warned_of():
    method = small_job(method="fedrts", rounds=60).method
    assert (method.every, method.until) == (4, 36)
    with pytest.warns(UserWarning, match="every 10 rounds up to round 300, and the run has 4"):
        small_job(method="fedrts", preset="paper")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small_job(method="fedrts", rounds=4)


@pytest.mark.parametrize(
    "options",
    [
        {"target_density": 0.0},
        {"churn": 1.5},
        {"every": 0},
        {"until": -1},
        {"voices": 2.0},
        {"evidence": 0.0},
        {"lr": 0.0},
        {"clip_norm": 0.0},
    ],
)
def test_values_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=f"fedrts: {next(iter(options))}"):
        small_job(method="fedrts", **options)
