"""FedDST: clients replace some of the mask, the server joins theirs and prunes back."""

import pytest
import torch

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round
from fedsieve.methods.feddst import Down, FedDST, Server, Up
from fedsieve.sparsity import layers
from six_weights import PLAIN, bits, data, task, values
from small import rounds_of, small_job

KEY = fold(0, "test")


def tiny(**options):
    """Half of six weights are kept, a third of these is replaced."""
    given = {
        "target_density": 0.5,
        "adjust_share": 1 / 3,
        "allocation": "uniform",
        "decay": "constant",
    }
    return FedDST(task=task(), **PLAIN | given | options).in_run(20)


def test_a_client_trades_its_smallest_weight_for_the_largest_gradient():
    down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.2, 0.0, 0.0, 0.0), 0)
    up, _, metrics = tiny().client_update(down, (), data(), KEY)
    # One step of rate 1/2 to TARGET: 2, 0.5, 0.1. The last goes; outside, the gradient of weight 3
    # is -8, that of weight 4 is 6. The one that has grown starts at 0.
    assert up.weights["w"].tolist() == [pytest.approx([2.0, 0.5, 0.0, 0.0, 0.0, 0.0])]
    assert torch.equal(up.mask["w"], bits(0, 1, 3)["w"])
    assert torch.equal(metrics.mask["w"], down.mask["w"])
    assert (metrics.processed, metrics.dense_gradients) == (4, 2)  # two trained, two for growth


def test_weights_grown_in_an_earlier_epoch_are_trained_in_the_rest():
    down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.2, 0.0, 0.0, 0.0), 0)
    up, *_ = tiny(adjust_epoch=0).client_update(down, (), data(steps=2, epochs=2), KEY)
    assert up.weights["w"].tolist() == [pytest.approx([3.0, 0.75, 0.0, 4.0, 0.0, 0.0])]


def test_masks_stay_between_readjustments_and_after_the_last():
    method = tiny(adjust_interval=3, adjust_until=7)
    changed = []
    for done in range(12):
        down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), done)
        up, *_ = method.client_update(down, (), data(), KEY)
        changed.append(not torch.equal(up.mask["w"], down.mask["w"]))
        assert not up.weights["w"][~up.mask["w"]].any()
    assert [done for done, is_new in enumerate(changed) if is_new] == [0, 3, 6]


def test_the_share_that_is_replaced_falls_as_half_a_cosine():
    method = tiny(adjust_share=0.6, decay="cosine", adjust_until=8)
    replaced = []
    for done in range(8):
        down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), done)
        up, *_ = method.client_update(down, (), data(), KEY)
        replaced.append(int((up.mask["w"] & ~down.mask["w"]).sum()))
    # 0.9 (1 + cos(pi t / 8)) of three: 1.8, 1.73, 1.54, 1.24, 0.9, 0.56, 0.26, 0.07, rounded up.
    assert replaced == [2, 2, 2, 2, 1, 1, 1, 1]


def test_the_server_takes_means_over_holders_and_prunes_the_union():
    server = Server(values(9.0, 9.0, 9.0, 0.0, 0.0, 0.0), bits(0, 1, 2), 4)
    replies = [
        Up(bits(0, 1, 3), values(1.0, -4.0, 0.0, 0.5, 0.0, 0.0), 30),
        Up(bits(0, 1, 4), values(3.0, -8.0, 0.0, 0.0, -2.0, 0.0), 10),
    ]
    after = tiny().server_update(server, Round(replies), KEY)
    # (30 * 1 + 10 * 3) / 40 = 1.5, -5, 0.5 of the first alone, -2 of the second alone.
    assert after.weights["w"].tolist() == [[1.5, -5.0, 0.0, 0.0, -2.0, 0.0]]
    assert torch.equal(after.mask["w"], bits(0, 1, 4)["w"])
    assert after.rounds == 5
    even = tiny(weighting="uniform").server_update(server, Round(replies), KEY)
    assert even.weights["w"].tolist() == [[2.0, -6.0, 0.0, 0.0, -2.0, 0.0]]


def test_of_weights_still_zero_those_that_most_clients_grew_stay():
    server = Server(values(1.0, 1.0, 1.0, 0.0, 0.0, 0.0), bits(0, 1, 2), 0)
    held = values(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    replies = [Up(bits(0, 1, k), held, 1) for k in (3, 5, 5)]
    after = tiny().server_update(server, Round(replies), KEY)
    assert torch.equal(after.mask["w"], bits(0, 1, 5)["w"])


def test_the_proximal_term_pulls_to_the_global_model():
    down = Down(bits(0, 1, 2), values(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 1)
    up, *_ = tiny(proximal=1.0, adjust_interval=2).client_update(down, (), data(steps=2), KEY)
    # 1 -> 1 + (4 - 1) / 2 = 2.5 -> 2.5 + ((4 - 2.5) - (2.5 - 1)) / 2 = 2.5
    assert up.weights["w"][0, 0] == 2.5


@pytest.mark.parametrize("allocation", ["erk_feddst", "erk", "uniform"])
def test_every_layer_has_its_count_after_every_round(allocation, tmp_path):
    job = small_job(method="feddst", target_density=0.3, allocation=allocation)
    counts = layers.allocate(job.method.task.graph, 0.3, allocation)
    rounds = rounds_of(job, tmp_path)
    start = rounds.start()
    first = start.server.mask
    for played in rounds.play(start):
        server = played.position.server
        assert layers.sizes(server.mask) == counts
        assert all(not server.weights[n][~m].any() for n, m in server.mask.items())
    assert any(not torch.equal(server.mask[n], first[n]) for n in first)


def test_at_full_density_it_is_fedavg():
    settings = {"dataset": "digits", "clients": 4, "rounds": 2, "model": "mlp(hidden=[8])"}
    sparse = fedsieve.run(method="feddst", target_density=1.0, **settings)
    plain = fedsieve.run(method="fedavg", **settings)
    for name, value in plain.model.items():
        torch.testing.assert_close(sparse.model[name], value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_density": 0.0},
        {"target_density": 1.1},
        {"adjust_share": 1.0},
        {"adjust_interval": 0},
        {"adjust_until": -1},
        {"adjust_epoch": -2},
        {"proximal": -1.0},
        {"lr": 0.0},
        {"clip_norm": 0.0},
    ],
)
def test_values_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        small_job(method="feddst", **wrong)
