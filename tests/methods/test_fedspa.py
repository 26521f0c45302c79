"""FedSpa: masks of the clients' own over one dense model."""

import pytest
import torch

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round, message_to
from fedsieve.methods.fedspa import Down, FedSpa, Server, State, Up
from fedsieve.sparsity import layers
from six_weights import PLAIN, bits, data, task, values
from small import rounds_of, small_job

KEY = fold(0, "test")


def tiny(**options):
    """Half of six weights are kept, a third of these is dropped at first."""
    given = {"target_density": 0.5, "drop_share": 1 / 3, "allocation": "uniform"}
    return FedSpa(task=task(), **PLAIN | given | options).in_run(20)


def test_a_client_drops_its_smallest_weight_and_grows_the_largest_gradient():
    down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.2, 0.0, 0.0, 0.0), 0)
    up, state, metrics = tiny().client_update(down, State(3, bits(0)), data(), KEY)
    # One step of rate 1/2 to TARGET: 2, 0.5, 0.1. Outside, the gradient of weight 3 is -8.
    assert up.change["w"].tolist() == [pytest.approx([2.0, 0.5, -0.1, 0.0, 0.0, 0.0])]
    assert torch.equal(up.mask["w"], down.mask["w"])
    assert torch.equal(up.next_mask["w"], bits(0, 1, 3)["w"])
    assert torch.equal(state.mask["w"], up.next_mask["w"])
    assert up.client == 3
    assert metrics.processed == 4  # two of training, two for the gradient


def test_a_weight_just_dropped_may_grow_again():
    down = Down(bits(3, 4, 5), values(0.0, 0.0, 0.0, -7.0, -5.5, 0.4), 0)
    up, *_ = tiny(drop_share=2 / 3).client_update(down, State(0, bits(0)), data(), KEY)
    # After the step 0.5, -5.75, 0.45; weights 3 and 5 go. Gradients: -4, -1, 0, -7.5, ., -0.05.
    assert torch.equal(up.next_mask["w"], bits(0, 3, 4)["w"])


def test_as_many_grow_as_drop_and_fewer_over_the_run():
    method = tiny(drop_share=0.6)
    replaced = []
    for done in range(0, 20, 4):
        down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), done)
        up, *_ = method.client_update(down, State(0, bits(0)), data(), KEY)
        assert layers.sizes(up.next_mask) == {"w": 3}
        replaced.append(int((up.next_mask["w"] & ~down.mask["w"]).sum()))
    # 0.9 (1 + cos(pi t / 20)) of three: 1.8, 1.63, 1.18, 0.62, 0.17, rounded up.
    assert replaced == [2, 2, 2, 1, 1]


def test_static_masks_stay_and_random_growth_looks_at_no_gradient():
    down = Down(bits(0, 1, 2), values(0.0, 0.0, 0.2, 0.0, 0.0, 0.0), 0)
    up, _, metrics = tiny(growth="static").client_update(down, State(0, bits(0)), data(), KEY)
    assert torch.equal(up.next_mask["w"], down.mask["w"])
    assert metrics.processed == 2
    grown = set()
    for draw in range(60):
        up, _, metrics = tiny(growth="random").client_update(
            down, State(0, bits(0)), data(), fold(draw, "client")
        )
        assert metrics.processed == 2
        assert layers.sizes(up.next_mask) == {"w": 3}
        grown |= set((up.next_mask["w"][0] & ~bits(0, 1)["w"][0]).nonzero()[:, 0].tolist())
    assert grown == {2, 3, 4, 5}


def test_the_server_adds_the_mean_of_changes_not_divided_by_who_holds_a_weight():
    server = Server(values(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), bits(0, 1, 2), {}, 4)
    replies = [
        Up(3, bits(0, 1), values(2.0, -4.0, 0.0, 0.0, 0.0, 0.0), bits(0, 5), 30),
        Up(8, bits(0, 2), values(4.0, 0.0, 6.0, 0.0, 0.0, 0.0), bits(2, 4), 10),
    ]
    after = tiny().server_update(server, Round(replies), KEY)
    assert after.weights["w"].tolist() == [[4.0, -1.0, 4.0, 1.0, 1.0, 1.0]]
    by_examples = tiny(weighting="samples").server_update(server, Round(replies), KEY)
    assert by_examples.weights["w"].tolist() == [[3.5, -2.0, 2.5, 1.0, 1.0, 1.0]]
    # Each client is sent its own part next, others that of the start.
    for client, mask in ((3, bits(0, 5)), (8, bits(2, 4)), (1, bits(0, 1, 2))):
        down = message_to(client, tiny().broadcast(after, KEY))
        assert torch.equal(down.mask["w"], mask["w"])
        assert torch.equal(down.weights["w"], after.weights["w"] * mask["w"])


def test_a_clients_model_is_its_part_of_the_newest_server_model():
    server = Server(values(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), bits(0), {}, 4)
    own = tiny().model(server, State(0, bits(1, 5)))
    assert own["w"].tolist() == [[0.0, 2.0, 0.0, 0.0, 0.0, 6.0]]
    assert tiny().model(server, ()) is None


def test_all_begin_with_one_random_mask_and_layers_keep_their_counts(tmp_path):
    job = small_job(method="fedspa", target_density=0.3)
    method, key = job.method, fold(7, "init")
    start = method.init_server(key).start
    counts = layers.allocate(method.task.graph, 0.3, "erk")
    assert layers.sizes(start) == counts
    assert all(torch.equal(start[n], method.init_client(4, key).mask[n]) for n in start)
    rounds = rounds_of(job, tmp_path)
    for played in rounds.play(rounds.start()):
        server = played.position.server
        assert all(layers.sizes(mask) == counts for mask in server.masks.values())
    known = [rounds.stores.states.get(c) for c in map(int, server.masks)]
    assert all(torch.equal(s.mask[n], server.masks[str(s.client)][n]) for s in known for n in start)


def test_at_full_density_it_is_fedavg():
    settings = {"dataset": "digits", "clients": 4, "rounds": 2, "model": "mlp(hidden=[8])"}
    sparse = fedsieve.run(method="fedspa", target_density=1.0, **settings)
    plain = fedsieve.run(method="fedavg", weighting="uniform", **settings)
    assert sparse.summary.local_accuracy == pytest.approx(plain.summary.local_accuracy)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_density": 0.0},
        {"target_density": 1.1},
        {"drop_share": 1.1},
        {"lr": 0.0},
        {"clip_norm": 0.0},
    ],
)
def test_values_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        small_job(method="fedspa", **wrong)
