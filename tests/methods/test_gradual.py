"""Gradual pruning: density falls by the cubic of Zhu & Gupta over the ramp, then stays."""

import math

import pytest
import torch

import fedsieve
from fedsieve.core.keys import fold
from fedsieve.core.method import Round
from fedsieve.methods.fedsparse import Up
from fedsieve.sparsity import masks
from small import SETTINGS, rounds_of, small_job

SIZE = 64 * 12 + 12 * 10  # weights of mlp(hidden=[12]) on 8x8 pictures
# rho + (1 - rho) (1 - t / 4)^3 of these for rho = 0.2, after t = 1, 2, 3 and then 4, 5 rounds
BY_HAND = [0.5375, 0.3, 0.2125, 0.2, 0.2]
KEPT = [math.floor(density * SIZE) for density in BY_HAND]


@pytest.mark.parametrize("method", ["fediter_ht", "fedht", "flops_pa", "flops_pa_central"])
def test_density_follows_the_ramp_and_ends_at_the_target(method):
    settings = SETTINGS | {"method": method, "target_density": 0.2, "rounds": 5}
    rows = fedsieve.run(**settings).rows  # of nine tenths of five rounds, 4 are whole
    assert [row.density for row in rows] == [kept / SIZE for kept in KEPT]


def test_density_of_flops_falls_for_two_thirds_of_a_run():
    settings = SETTINGS | {"method": "flops", "target_density": 0.2, "rounds": 6}
    rows = fedsieve.run(**settings).rows
    assert [row.density for row in rows] == [kept / SIZE for kept in [*KEPT, KEPT[-1]]]


@pytest.mark.parametrize("method", ["fediter_ht", "fedht", "flops", "flops_pa"])
def test_a_ramp_of_no_rounds_has_the_target_from_the_first_on(method):
    settings = SETTINGS | {"method": method, "target_density": 0.2, "rounds": 2, "ramp": 0}
    assert [row.density for row in fedsieve.run(**settings).rows] == [177 / SIZE] * 2


@pytest.mark.parametrize("method", ["fediter_ht", "flops", "flops_pa", "fedsparse"])
def test_a_ramp_longer_than_the_run_is_warned_of_and_ends_too_dense(method):
    settings = SETTINGS | {"method": method, "target_density": 0.2, "rounds": 1, "ramp": 4}
    with pytest.warns(UserWarning, match="density falls for 4 rounds and the run has 1"):
        (row,) = fedsieve.run(**settings).rows
    assert row.density == pytest.approx(477 / SIZE, abs=12 / SIZE)  # groups of up to 12 weights


def played(folder, **settings):
    job = small_job(method="fedsparse", target_density=0.2, rounds=5, ramp=4, **settings)
    rounds = rounds_of(job, folder)
    return [p.position.server for p in rounds.play(rounds.start())]


def test_single_weights_of_fedsparse_follow_the_ramp_exactly(tmp_path):
    for server, kept in zip(played(tmp_path, groups="weights"), KEPT, strict=True):
        assert sum(int(a.sum()) for a in server.alive.values()) == kept


def test_groups_of_fedsparse_take_up_as_much_of_the_density_as_they_fit(tmp_path):
    """12 weights to each pixel, 10 to each hidden unit: less than one group is left over."""
    before = None
    for server, density in zip(played(tmp_path), BY_HAND, strict=True):
        alive = {n: a.expand_as(server.weights[n]) for n, a in server.alive.items()}
        kept = sum(int(a.sum()) for a in alive.values())
        assert density * SIZE - 12 < kept <= density * SIZE
        assert all(not server.weights[n][~a].any() for n, a in alive.items())
        assert before is None or all((a <= before[n]).all() for n, a in server.alive.items())
        before = server.alive


def test_fedsparse_keeps_the_strongest_group_of_a_layer_that_is_weaker_than_all_others():
    method = small_job(method="fedsparse", target_density=0.05, ramp=0).method
    server = method.init_server(fold(0, "init"))
    weights = dict(server.weights)
    weights["fc2.weight"] = 1e-6 * weights["fc2.weight"]
    weights["fc2.weight"][:, 7] *= 2
    server = server._replace(weights=weights)
    gates = {n: torch.ones_like(a) for n, a in server.alive.items()}
    after = method.server_update(server, Round([Up(gates, weights, 1)]), fold(0, "server"))
    assert after.alive["fc2.weight"].flatten().nonzero().flatten().tolist() == [7]
    assert after.alive["fc1.weight"].sum() == math.floor(0.05 * SIZE / 12)
    left = masks.apply(weights, after.alive)
    torch.testing.assert_close(after.weights["fc2.weight"], left["fc2.weight"])
