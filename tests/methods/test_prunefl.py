"""PruneFL: weights stay while they gain more than they cost."""

import pytest
import torch

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Cohort, Round
from fedsieve.methods.prunefl import Down, PruneFL, Server, State, Up
from fedsieve.optim.optimisers import SGD
from fedsieve.sparsity import masks
from fedsieve.wire.codec import encode
from six_weights import PLAIN, bits, data, task, values
from small import rounds_of, small_job

KEY = fold(0, "test")
FALLING = values(6.0, 5.0, 4.0, 3.0, 2.0, 1.0)


def tiny(**options):
    """Six weights; a run of 20 rounds begins with two of one client."""
    return PruneFL(task=task(), **PLAIN | {"density_cap": 1.0, "fixed_cost": 0.5} | options).in_run(
        20
    )


@pytest.mark.parametrize(
    ("importance", "kept"),
    [
        # 4 and 5 are the smallest third. Gain 4 for a cost of 0.5 * 6 + 4 = 7, 0.571 each.
        ((1.0, 1.0, 1.0, 1.0, 0.5, 0.5), (0, 1, 2, 3)),
        ((1.0, 1.0, 1.0, 1.0, 0.6, 0.5), (0, 1, 2, 3, 4)),
        # With the first there are 4.9 for 8, 0.6125: 0.6 would have been enough before.
        ((1.0, 1.0, 1.0, 1.0, 0.6, 0.9), (0, 1, 2, 3, 5)),
        ((1.0, 1.0, 1.0, 1.0, 0.62, 0.9), (0, 1, 2, 3, 4, 5)),
        ((0.0, 0.0, 0.0, 0.0, 0.0, 0.0), (0, 1, 2, 3)),
    ],
)
def test_dropped_weights_return_if_they_pay_for_themselves(importance, kept):
    mask = tiny().reconfigured(FALLING, bits(*range(6)), values(*importance), 1 / 3)
    assert torch.equal(mask["w"], bits(*kept)["w"])


def test_weights_outside_the_mask_may_take_the_place_of_dropped_ones():
    importance = values(1.0, 1.0, 0.1, 0.1, 9.0, 0.1)
    mask = tiny().reconfigured(FALLING, bits(0, 1, 2, 3), importance, 1 / 2)
    # Kept 0 and 1: 2 for 5. Then 9 for one more: 11 for 6.
    assert torch.equal(mask["w"], bits(0, 1, 4)["w"])


def test_parameters_that_are_never_pruned_count_as_gain():
    importance = values(1.0, 1.0, 1.0, 1.0, 0.6, 0.5) | {"bias": torch.tensor([1.0])}
    mask = tiny().reconfigured(FALLING, bits(*range(6)), importance, 1 / 3)
    assert torch.equal(mask["w"], bits(0, 1, 2, 3)["w"])  # 0.6 is less than 5 / 7


def test_nothing_is_added_above_the_cap():
    importance = values(1.0, 1.0, 1.0, 8.0, 9.0, 7.0)
    mask = tiny(density_cap=2 / 3).reconfigured(FALLING, bits(0, 1, 2), importance, 0.0)
    assert torch.equal(mask["w"], bits(0, 1, 2, 4)["w"])
    mask = tiny(density_cap=0.5).reconfigured(FALLING, bits(*range(6)), importance, 1 / 3)
    assert torch.equal(mask["w"], bits(0, 1, 2, 3)["w"])  # it falls by a third at a time


@pytest.mark.parametrize("optimiser", [SGD(), SGD(momentum=0.9)])
def test_importance_is_the_square_of_summed_gradients_of_all_weights(optimiser):
    down = Down(bits(0), values(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0)
    method = tiny(optimiser=optimiser)
    up, state, metrics = method.client_update(down, State({}), data(steps=2), KEY)
    # Weight 0 is 0, then 2: gradients -4 and -2. Weight 3 stays 0: -8 twice. Four examples.
    assert up.importance["w"][0, [0, 1, 2, 3]].tolist() == [4 * 36.0, 4 * 4.0, 0.0, 4 * 256.0]
    assert up.weights["w"][0, 1:].tolist() == [0.0] * 5
    assert state == State({})
    assert metrics.processed == 4
    assert torch.equal(metrics.mask["w"], down.mask["w"])


def test_importance_is_gathered_between_reconfigurations():
    method = tiny(initial_rounds=1, adjust_interval=3)
    state, sent = State({}), []
    for done in range(8):
        down = Down(bits(0), values(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), done)
        up, state, _ = method.client_update(down, state, data(), KEY)
        sent.append(up.importance["w"][0, 0].item() if up.importance else None)
    # 2 * 16 in a round; one round of initial pruning, then after every third the next is sent.
    assert sent == [32.0, None, None, None, 4 * 32.0, None, None, 3 * 32.0]


def test_the_importance_on_the_wire_is_dense():
    down = Down(bits(0), values(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0)
    up, *_ = tiny().client_update(down, State({}), data(), KEY)
    assert tiny().paper_bytes(up) == 4 * (1 + 6)
    assert len(encode(up).data) > len(encode(up._replace(importance={})).data) + 6


def test_the_server_keeps_what_it_does_not_send_and_it_returns_as_it_was():
    method = tiny(drop_share=0.0)
    server = Server(values(1.0, 1.0, 1.0, 7.0, 8.0, 9.0), bits(0, 1, 2), 0)
    assert method.broadcast(server, KEY).weights["w"].tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]
    importance = values(1.0, 1.0, 1.0, 0.0, 5.0, 0.0)
    replies = [
        Up(server.mask, values(2.0, 0.0, 4.0, 0.0, 0.0, 0.0), importance, 30),
        Up(server.mask, values(6.0, 4.0, 0.0, 0.0, 0.0, 0.0), importance, 10),
    ]
    after = method.server_update(server, Round(replies), KEY)
    assert after.weights["w"].tolist() == [[3.0, 1.0, 3.0, 7.0, 8.0, 9.0]]
    assert torch.equal(after.mask["w"], bits(0, 1, 2, 4)["w"])
    assert method.model(after, ())["w"].tolist() == [[3.0, 1.0, 3.0, 0.0, 8.0, 0.0]]


def test_one_client_prunes_in_the_first_rounds():
    method = tiny(initial_rounds=2)
    assert [method.cohort(9, done) for done in range(4)] == [
        Cohort(1, 0), Cohort(1, 0), Cohort(9, 2), Cohort(9, 3),
    ]  # fmt: skip


def test_density_falls_to_the_cap_and_stays_below(tmp_path):
    job = small_job(method="prunefl", density_cap=0.6, initial_rounds=2, adjust_interval=1)
    rounds = rounds_of(job, tmp_path)
    played = list(rounds.play(rounds.start()))
    densities = [masks.density(p.position.server.mask) for p in played]
    assert densities[0] == pytest.approx(0.7, abs=0.01)
    assert all(0 < density <= 0.6 for density in densities[1:])
    assert [p.row.clients for p in played] == [1, 1, 3, 3]


def test_excluded_layers_stay_whole():
    job = small_job(method="prunefl", exclude=("fc2",))
    server = job.method.init_server(KEY)
    assert list(server.mask) == ["fc1.weight"]
    with pytest.raises(ConfigError, match=r"exclude.*fc9"):
        small_job(method="prunefl", exclude=("fc9",))
    with pytest.raises(ConfigError, match=r"no layer to prune.*fedavg"):
        small_job(method="prunefl", exclude=("fc1", "fc2"))


def test_without_pruning_it_is_fedavg():
    settings = {"dataset": "digits", "clients": 4, "rounds": 2, "model": "mlp(hidden=[8])"}
    whole = {"drop_share": 0.0, "density_cap": 1.0, "initial_rounds": 0}
    sparse = fedsieve.run(method="prunefl", **whole, **settings)
    plain = fedsieve.run(method="fedavg", **settings)
    for name, value in plain.model.items():
        torch.testing.assert_close(sparse.model[name], value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"density_cap": 0.0},
        {"density_cap": 1.1},
        {"fixed_cost": 0.0},
        {"drop_share": 1.0},
        {"adjust_interval": 0},
        {"initial_rounds": -1},
        {"lr": 0.0},
        {"clip_norm": 0.0},
    ],
)
def test_values_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        small_job(method="prunefl", **wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"initial_rounds": 4}, "one client alone"),
        ({"initial_rounds": 1, "adjust_interval": 4}, "1 reconfigurations that drop 0.3 each"),
    ],
)
def test_runs_too_short_to_prune_are_spoken_of(options, said):
    with pytest.warns(UserWarning, match=said):
        small_job(method="prunefl", **options)
