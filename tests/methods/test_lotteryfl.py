"""LotteryFL: when a client prunes, what it starts from, and means over holders of a weight."""

import pytest
import torch

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round, message_to
from fedsieve.engine import blob
from fedsieve.methods.lotteryfl import Server, State, Up
from fedsieve.sparsity import layers, masks
from small import rounds_of, small_job

KEY = fold(0, "init")
OPEN = {"gate_on": "accuracy", "gate": 0.0, "prune_until": 0}
STILL = {"lr": 1e-12, "steps": 1, "schedule": "constant"}


def small(**options):
    return small_job(method="lotteryfl", **options)


def exchange(job, server, state):
    """The reply, state and metrics of client 0."""
    down = message_to(0, job.method.broadcast(server, KEY))
    return job.method.client_update(down, state, job.federation.batches(0), fold(1))


def counts(mask):
    return [bits.sum().item() for bits in mask.values()]


def elsewhere(server):
    """A server whose weights are not the initial ones."""
    return server._replace(weights=tree.map_leaves(lambda x: x.flip(0) + 1e-3, server.weights))


def test_pruning_keeps_the_largest_received_weights_and_starts_them_anew():
    job = small(**OPEN, **STILL, prune_share=0.25)
    first = job.method.init_server(KEY)
    server = elsewhere(first)
    up, _, metrics = exchange(job, server, job.method.init_client(0, KEY))
    assert counts(up.mask) == [768 * 3 // 4, 120 * 3 // 4]
    for name, bits in up.mask.items():
        received = server.weights[name].abs()
        assert received[bits].min() >= received[~bits].max()
    torch.testing.assert_close(up.weights, masks.apply(first.weights, up.mask))
    assert metrics.values["pruned"] == 1
    assert tree.equal(metrics.mask, up.mask)


def test_without_reset_what_is_left_goes_on():
    job = small(**OPEN, **STILL, reset=False)
    server = elsewhere(job.method.init_server(KEY))
    up, *_ = exchange(job, server, job.method.init_client(0, KEY))
    torch.testing.assert_close(up.weights, masks.apply(server.weights, up.mask))


def test_statistics_of_normalisation_do_not_start_anew():
    job = small(**OPEN, lr=1e-12, model="resnet8", steps=1)
    server = job.method.init_server(KEY)
    moved = server.weights | {n: server.weights[n] + 5 for n in job.method.task.buffers}
    state = job.method.init_client(0, KEY)
    restarted = job.method._restarted(moved, state)
    assert tree.equal(restarted, moved)
    assert job.method.task.buffers


@pytest.mark.parametrize("key", [fold(0, "init"), *(fold(n, "x") for n in range(4)), 2**64 - 1])
def test_clients_know_the_initial_weights_from_their_key(key):
    method = small().method
    state = blob.unpack(State, blob.pack(method.init_client(0, key)))
    start = method.init_server(key).weights
    assert tree.equal(method._restarted(tree.map_leaves(torch.zeros_like, start), state), start)


def test_pruned_weights_are_0_and_stay_so():
    job = small(**OPEN, optimiser="sgd(momentum=0.9)", lr=0.5)
    state, server = job.method.init_client(0, KEY), job.method.init_server(KEY)
    for _ in range(2):
        up, state, _ = exchange(job, server, state)
        server = job.method.server_update(server, Round([up]), KEY)
        for name, bits in up.mask.items():
            assert not up.weights[name][~bits].any()
            assert up.weights[name][bits].all()


@pytest.mark.parametrize(
    ("overshoot", "first_layer"),
    [(False, [614, 491, 392, 384, 384]), (True, [614, 491, 392, 313, 313])],
)
def test_steps_of_a_fifth_end_at_the_target_or_past_it(overshoot, first_layer):
    """768 weights: .8 of 768 is 614.4, of 614 491.2, of 491 392.8, of 392 313.6."""
    job = small(**OPEN, prune_share=0.2, overshoot=overshoot)
    server, state, found = job.method.init_server(KEY), job.method.init_client(0, KEY), []
    for _ in first_layer:
        up, state, _ = exchange(job, server, state)
        server = job.method.server_update(server, Round([up]), KEY)
        found.append(counts(up.mask)[0])
    assert found == first_layer


def is_pruning(score_before=0.0, rounds=0, **options):
    job = small(**options)
    server = job.method.init_server(KEY)._replace(rounds=rounds)
    state = job.method.init_client(0, KEY)._replace(score=score_before)
    return bool(exchange(job, server, state)[2].values["pruned"])


def test_the_gate_on_accuracy():
    assert is_pruning(**OPEN)
    assert not is_pruning(**OPEN | {"gate": 1.0})


def test_the_gate_on_what_the_client_had_after_training():
    assert not is_pruning()  # it has not trained yet
    assert is_pruning(score_before=1e-3)
    assert not is_pruning(score_before=1.0)


def test_a_score_that_is_not_defined_opens_no_gate(monkeypatch):
    monkeypatch.setattr("fedsieve.optim.local.score", lambda *_: float("nan"))
    job = small()
    _, state, metrics = exchange(job, job.method.init_server(KEY), State(0, 0, 0.5))
    assert state.score == 0
    assert metrics.values["pruned"] == 0


def test_clients_prune_in_the_first_half_of_the_run():
    assert small(rounds=5).method.prune_until == 3
    assert is_pruning(score_before=1e-3, prune_until=3, rounds=2)
    assert not is_pruning(score_before=1e-3, prune_until=3, rounds=3)
    assert is_pruning(score_before=1e-3, prune_until=0, rounds=1000)


def test_data_is_held_back_only_while_a_client_may_prune():
    job = small(prune_until=3)
    server, state = job.method.init_server(KEY), job.method.init_client(0, KEY)
    examples = job.federation.examples(0)
    early = exchange(job, server, state)
    late = exchange(job, server._replace(rounds=3), state)
    assert early[2].processed == 2 * (examples - round(0.1 * examples))  # two epochs
    assert late[2].processed == 2 * examples
    assert early[0].examples == late[0].examples == examples


def test_the_server_takes_means_over_those_who_hold_a_weight():
    method = small(weighting="uniform").method
    bits = [torch.tensor(b) for b in ([True, True, False], [True, False, False])]
    values = [torch.tensor(v) for v in ([2.0, 3.0, 0.0], [4.0, 0.0, 0.0])]
    ups = [
        Up({"w": b}, {"w": v, "b": v[:1]}, client, 1 + client)
        for client, (b, v) in enumerate(zip(bits, values, strict=True))
    ]
    before = Server({"w": torch.full((3,), 7.0), "b": torch.zeros(1)}, {}, 0)
    after = method.server_update(before, Round(ups), KEY)
    assert after.weights["w"].tolist() == [3, 3, 7]
    assert after.weights["b"].tolist() == [3]
    assert after.masks["1"]["w"].tolist() == [True, False, False]
    assert method.model(after, State(1, 0, 0.0))["w"].tolist() == [3, 0, 0]
    assert method.model(after, State(5, 0, 0.0))["w"].tolist() == [3, 3, 7]
    assert method.model(after, ()) is None
    assert message_to(1, method.broadcast(after, KEY)).mask["w"].tolist() == [True, False, False]


def test_without_pruning_it_is_fedavg(tmp_path):
    weights = []
    for settings in ({"method": "fedavg"}, {"method": "lotteryfl", "target_density": 1.0}):
        rounds = rounds_of(small_job(rounds=2, **settings), tmp_path / settings["method"])
        weights.append(list(rounds.play(rounds.start()))[-1].position.server.weights)
    torch.testing.assert_close(*weights)


def test_normalisation_is_masked_in_the_preset_code_alone():
    names = {"norm.weight", "block1.norm1.weight"}
    for preset, is_masked in (("code", True), ("paper", False), ("default", False)):
        method = small(preset=preset, model="resnet8").method
        mask = method._whole(method.init_server(KEY).weights)
        assert (names <= set(mask)) == is_masked
        assert set(method.task.graph.maskable) <= set(mask)
        assert not any(name.endswith(("bias", "mean", "var")) for name in mask)


@pytest.mark.parametrize(
    "options",
    [
        {"target_density": 0.0}, {"target_density": 1.1}, {"prune_share": 0.0},
        {"prune_share": 1.0}, {"gate": 1.1}, {"held_back": 0.0}, {"held_back": 1.0},
        {"prune_until": -1}, {"lr": 0.0}, {"clip_norm": 0.0},
    ],
)  # fmt: skip
def test_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        small(**options)


def test_a_layer_without_a_weight_to_spare_is_no_reason_to_start_anew():
    """Of 0.001 * 120 weights one stays, so that the density never falls to the target."""
    job = small(**OPEN, target_density=0.001, prune_share=0.999)
    server = job.method.init_server(KEY)
    up, state, metrics = exchange(job, server, job.method.init_client(0, KEY))
    assert layers.sizes(up.mask) == {"fc1.weight": 1, "fc2.weight": 1}
    server = job.method.server_update(server, Round([up]), KEY)
    again, _, metrics = exchange(job, server, state)
    assert metrics.values["pruned"] == 0
    assert tree.equal(again.mask, up.mask)


def test_a_density_of_the_target_is_reached_in_every_layer():
    job = small(**OPEN)
    up, *_ = exchange(job, job.method.init_server(KEY), job.method.init_client(0, KEY))
    assert layers.sizes(up.mask) == {"fc1.weight": 384, "fc2.weight": 60}
