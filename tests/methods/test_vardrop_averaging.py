"""Variational dropout by default: a sampled cohort, whose posteriors are pooled."""

import math
import warnings

import pytest
import torch

from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.message import paper_bytes
from fedsieve.core.method import Round
from fedsieve.methods.vardrop import Up
from fedsieve.wire.codec import Decoder, encode
from small import rounds_of, small_job

KEY = fold(0, "test")
BIASES = 12 + 10


def over_the_wire(message):
    return Decoder().decode(encode(message).data, type(message))


def whole(params, value):
    return {n: torch.full_like(w, value) for n, w in params.items()}


def test_the_server_pools_posteriors_by_their_precision():
    """Log-variances -11 and -10: precisions e^11 and e^10; each weight over those who keep it."""
    method = small_job(method="vardrop", log_variance=-10.0).method
    server = method.init_server(KEY)
    weights, variances = server.model.posterior
    first, second = ({n: torch.ones_like(m) for n, m in server.kept.items()} for _ in range(2))
    first["fc1.weight"][0, 2] = False
    second["fc1.weight"][0, 1:3] = False
    ups = [
        Up(first, whole(weights, 0.2), whole(variances, 1.0), {}, 30, 0),
        Up(second, whole(weights, -0.4), whole(variances, 0.0), {}, 70, 1),
    ]
    after = method.server_update(server, Round(ups), KEY)
    moved = tree.subtract(weights, after.model.posterior.weights)
    pooled = after.model.posterior.log_variance
    mean = (math.e * 0.2 - 0.4) / (math.e + 1)
    both = -math.log((math.exp(11) + math.exp(10)) / 2)
    assert moved["fc1.weight"][0, :4].tolist() == pytest.approx([mean, 0.2, 0, mean], abs=1e-6)
    assert pooled["fc1.weight"][0, :4].tolist() == pytest.approx([both, -11, -10, both], abs=1e-5)
    torch.testing.assert_close(moved["fc2.weight"], torch.full((10, 12), mean))
    torch.testing.assert_close(moved["fc1.bias"], torch.full((12,), -0.1))  # no variance: the mean
    assert after.examples == 100
    assert after.rounds == 1


def test_what_is_masked_is_not_sent_and_stays_zero():
    job = small_job(method="vardrop", log_variance=-5.0, warmup=1, rounds=6)
    method = job.method
    server, states = method.init_server(KEY), [method.init_client(c, KEY) for c in range(3)]
    before = {n: torch.ones_like(m) for n, m in server.kept.items()}
    for number in range(5):
        down = over_the_wire(method.broadcast(server, KEY))
        assert bool(down.mask) == (number > 0)  # none in the warm-up
        ups = []
        for client, state in enumerate(states):
            data, key = job.federation.batches(client), fold(KEY, number, client)
            up, after, metrics = method.client_update(down, state, data, key)
            ups.append(over_the_wire(up))
            assert tree.equal(up.mask, down.mask)
            assert metrics.mask is None if not down.mask else tree.equal(metrics.mask, down.mask)
            assert not after.model.posterior.weights  # clients keep nothing
        if not down.mask:  # there is no noise yet, and no variance is sent
            assert paper_bytes(down) == paper_bytes(ups[0]) == 4 * (64 * 12 + 12 * 10 + BIASES)
        else:
            kept = sum(int(m.sum()) for m in down.mask.values())
            assert 0 < kept < 64 * 12 + 12 * 10
            assert paper_bytes(down) == paper_bytes(ups[0]) == 4 * (2 * kept + BIASES)
        for name, mask in down.mask.items():
            assert not (mask & ~before[name]).any()  # what was masked does not come back
            assert not down.weights[name][~mask].any()
            assert all(not up.weights[name][~mask].any() for up in ups)
        before = down.mask or before
        server = method.server_update(server, Round(ups), KEY)
        model = method.model(server, ())
        for name, mask in server.kept.items():
            assert not model[name][~mask].any()
            assert model[name][mask].all()
            assert not (mask & ~before[name]).any()


def test_a_cohort_is_sampled_like_that_of_any_method(tmp_path):
    job = small_job(method="vardrop", clients=8, cohort=2, rounds=4)
    assert job.config.cohort == 2
    rounds = rounds_of(job, tmp_path)
    cohorts = [frozenset(m.client for m in p.messages) for p in rounds.play(rounds.start())]
    assert {len(cohort) for cohort in cohorts} == {2}
    assert len(set(cohorts)) > 1


def test_a_client_does_the_local_steps_of_the_job():
    for steps in (None, 3):
        job = small_job(method="vardrop", epochs=2, batch_size=20, local_steps=steps)
        method, data = job.method, job.federation.batches(0)
        down = method.broadcast(method.init_server(KEY), KEY)
        *_, metrics = method.client_update(down, method.init_client(0, KEY), data, KEY)
        assert metrics.processed == (2 * data.examples if steps is None else 3 * 20)


def test_warm_up_ramp_and_rate_of_variances_follow_the_length_of_the_run():
    method = small_job(method="vardrop", rounds=60).method
    assert (method.warmup, method.ramp, method.variance_lr) == (12, 12, 0.5)
    given = small_job(method="vardrop", rounds=60, warmup=3, ramp=5, variance_lr=0.1).method
    assert (given.warmup, given.ramp, given.variance_lr) == (3, 5, 0.1)


def test_a_ramp_that_does_not_fit_into_the_run_is_warned_of():
    with pytest.warns(UserWarning, match=r"take 2 \+ 9 rounds and the run has 4: little will be"):
        small_job(method="vardrop", rounds=4, warmup=2, ramp=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small_job(method="vardrop", rounds=4)
        small_job(method="vardrop", rounds=4, warmup=4, ramp=9)  # dense on purpose
