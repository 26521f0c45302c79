"""What FedSparse promises (specification fedsparse, sections 3, 7 and 10)."""

import math

import pytest
import torch

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.message import paper_bytes
from fedsieve.core.method import Round
from fedsieve.methods.fedavg import Own
from fedsieve.methods.fedsparse import Down, Up
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.optim import local
from fedsieve.sparsity import masks
from fedsieve.sparsity.masks import density, nonzero
from fedsieve.wire.codec import Decoder, encode
from small import rounds_of, small_job

HARSH = {"gate_cost": 1e-3, "threshold_lr": 5e-3, "lr": 0.05}


def job_of(**settings):
    return small_job(
        **{"method": "fedsparse", "preset": "paper", "model": "conv_small", **settings}
    )


def played(tmp_path, **settings):
    job = job_of(**settings)
    rounds = rounds_of(job, tmp_path, eval_every=10**6)
    *_, last = rounds.play(rounds.start())
    return job, last


def exchange(job, server):
    """The replies of three clients to one broadcast."""
    down = job.method.broadcast(server, fold(0, "broadcast"))
    return down, [
        job.method.client_update(
            down, job.method.init_client(c, fold(0)), job.federation.batches(c), fold(0, "c", c)
        )
        for c in range(3)
    ]


def pruned_server(job, share=0.5):
    """A start with about half of the groups pruned."""
    server = job.method.init_server(fold(0, "init"))
    generator = torch.Generator().manual_seed(0)
    alive = {n: torch.rand(a.shape, generator=generator) > share for n, a in server.alive.items()}
    weights = masks.apply(server.weights, alive)
    return server._replace(weights=weights, alive=alive)


@pytest.mark.parametrize(
    ("groups", "fc", "conv"),
    [
        ("features", (1, 128), (16, 1, 1, 1)),
        ("units", (100, 1), (16, 1, 1, 1)),
        ("weights", (100, 128), (16, 1, 3, 3)),
    ],
)
def test_a_gate_holds_a_filter_and_a_feature_a_unit_or_a_single_weight(groups, fc, conv):
    server = job_of(groups=groups).method.init_server(fold(0, "init"))
    assert server.alive["fc1.weight"].shape == fc
    assert server.alive["conv1.weight"].shape == conv
    assert server.alive.keys() == {f"{n}.weight" for n in ("conv1", "conv2", "fc1", "fc2")}


def test_ungated_weights_have_no_gates_and_travel_whole():
    job = job_of(ungated=["fc2.weight"])
    server = pruned_server(job)
    assert "fc2.weight" not in server.alive
    _, ((up, *_), *_) = exchange(job, server)
    assert "fc2.weight" not in up.gates
    assert up.weights["fc2.weight"].all()
    with pytest.raises(ConfigError, match=r"ungated.*fc9"):
        job_of(ungated=["fc9.weight"])


@pytest.mark.parametrize(
    ("optimiser", "server_lr", "tolerance"),
    [
        ("sgd", 1.0, 1e-6),
        # Adam magnifies the rounding of gradients near 0; a step is 1e-3.
        ("adam", 1e-3, 3e-6),
    ],
)
def test_with_gates_forced_open_it_is_fedopt_step_by_step(
    tmp_path, optimiser, server_lr, tolerance
):
    # theta = 1 - 1e-12 and T = 0.002: a norm may fall by 0.03 and its gate is still open.
    common = {
        "rounds": 3, "lr": 0.02, "steps": 4, "weighting": "uniform",
        "server_optimiser": optimiser, "server_lr": server_lr,
    }  # fmt: skip
    open_ = {
        "gate_cost": 0.0, "cross_entropy": 0.0, "temperature": 0.002, "theta_start": 1 - 1e-12,
        "prune_below": 0.0,
    }  # fmt: skip
    _, sparse = played(tmp_path / "a", **common, **open_)
    _, plain = played(tmp_path / "b", **common | {"method": "fedopt"})
    server = sparse.position.server
    assert all(a.all() for a in server.alive.values())
    for name, expected in plain.position.server.weights.items():
        torch.testing.assert_close(server.weights[name], expected, rtol=0, atol=tolerance)
    assert sparse.row.up_paper_bytes == plain.row.up_paper_bytes


@pytest.mark.parametrize("theta", ["thresholds", "free"])
@pytest.mark.parametrize("groups", ["features", "weights"])
def test_a_pruned_group_is_never_sent_nor_revived(theta, groups):
    job = job_of(theta=theta, groups=groups)
    server = pruned_server(job)
    _, replies = exchange(job, server)
    gone = {n: ~a for n, a in server.alive.items()}
    for up, *_ in replies:
        for name, dead in gone.items():
            assert not (up.gates[name] & dead).any()
            assert not up.weights[name].where(dead, 0).any()
    after = job.method.server_update(server, Round([up for up, *_ in replies]), fold(0, "server"))
    for name, dead in gone.items():
        assert not (after.alive[name] & dead).any()
        assert not after.weights[name].where(dead, 0).any()
    assert tree.is_finite(after)


@pytest.mark.parametrize("theta_start", [0.99, 0.8, 0.4])
def test_a_group_that_no_client_keeps_is_pruned_if_theta_is_free(theta_start):
    method = job_of(theta="free", theta_start=theta_start).method
    server = method.init_server(fold(0, "init"))
    gates = {n: torch.ones_like(a) for n, a in server.alive.items()}
    gates["conv1.weight"] = gates["conv1.weight"].clone()
    gates["conv1.weight"][3] = False
    up = Up(gates, masks.apply(server.weights, gates), 1)
    after = method.server_update(server, Round([up, up]), fold(0, "server"))
    assert tree.equal(after.alive, gates)


def test_moments_of_pruned_groups_are_zero_and_others_are_not(tmp_path):
    job, last = played(tmp_path, rounds=6, **HARSH)
    server = last.position.server
    assert not all(a.all() for a in server.alive.values())
    for moments in (server.moments, server.threshold_moments):
        for name, alive in server.alive.items():
            for slot in ("first", "second", "largest"):
                value = moments.get(f"{slot}/{name}")
                if value is not None:
                    assert not value.where(~alive, 0).any()
                    assert value.where(alive, 0).any() or not alive.any()
    assert job.method.model(server, ()) is server.weights


def test_paper_bytes_are_four_for_each_surviving_value_in_both_directions():
    job = job_of()
    server = pruned_server(job)
    down, ((up, *_), *_) = exchange(job, server)
    sizes = {n: w.numel() for n, w in server.weights.items()}

    def values(gates):
        kept = sum(int(g.sum()) * (sizes[n] // g.numel()) for n, g in gates.items())
        return kept + sum(size for n, size in sizes.items() if n not in gates)

    survivors = sum(int(a.sum()) for a in server.alive.values())  # thresholds
    assert paper_bytes(down) == 4 * (values(server.alive) + survivors)
    assert paper_bytes(up) == 4 * values(up.gates)


def test_gates_cost_about_a_bit_each_on_the_wire():
    job = job_of()
    server = pruned_server(job)
    down, ((up, *_), *_) = exchange(job, server)
    groups = sum(a.numel() for a in server.alive.values())
    for message in (down, up):
        payload = encode(message)
        assert payload.mask_bytes < groups / 8 + 16
        assert payload.value_bytes <= paper_bytes(message)
    received = Decoder().decode(encode(down).data, Down)
    assert tree.equal(received.weights, server.weights)  # they are 0 where pruned
    received = Decoder().decode(encode(up).data, Up)
    assert tree.equal(received.weights, up.weights)


@pytest.mark.parametrize("theta", ["thresholds", "free"])
def test_a_larger_gate_cost_gives_a_sparser_model(tmp_path, theta):
    settings = {"model": "mlp(hidden=[20])", "rounds": 5, "theta": theta, "threshold_lr": 2e-3}
    found = [
        played(tmp_path / f"{cost}", gate_cost=cost, **settings)[1].row.density
        for cost in (0.0, 1e-4, 1e-2)
    ]
    assert found[0] > found[1] > found[2]
    assert found[0] > found[2] + 0.05


@pytest.mark.parametrize("steps", [2, 10, 40])
def test_thresholds_can_travel_by_the_root_of_the_number_of_local_steps(steps, monkeypatch):
    job = job_of(steps=steps, threshold_lr=1e-3)
    method, data = job.method, job.federation.batches(0)
    server = method.init_server(fold(0, "init"))
    rates = []

    def untrained(objective, start, *_, lr, **options):
        rates.append(lr[1])
        return local.Trained(start, (), 0.0, 0, 0)

    monkeypatch.setattr(local, "train", untrained)
    method.client_update(method.broadcast(server, fold(0)), (), data, fold(0))
    assert rates[0] * steps == pytest.approx(1e-2 * math.sqrt(steps / 10))
    assert data.steps == steps


def test_the_last_upload_is_the_clients_own_model():
    for personal in (False, True):
        job = job_of(personal=personal)
        server = job.method.init_server(fold(0, "init"))
        assert job.method.model(server, ()) is server.weights
        _, ((up, state, _), *_) = exchange(job, server)
        if personal:
            assert tree.equal(job.method.model(server, state), up.weights)
            assert job.method.model(server, job.method.init_client(0, fold(0))) is None
        else:
            assert state == ()
            assert not isinstance(state, Own)


def test_local_accuracy_is_over_shards_that_have_reported(tmp_path):
    job = job_of(personal=True, rounds=1, cohort=2)
    rounds = rounds_of(job, tmp_path)
    (only,) = rounds.play(rounds.start())
    known = rounds.stores.states.known()
    scores = only.evaluation.client_accuracy
    assert len(known) == 2
    assert [i for i, score in enumerate(scores) if score is not None] == known
    by_hand = []
    for client in known:
        model = rounds.stores.states.get(client).weights
        batch = next(job.federation.scored_batches(client))
        right = job.method.task.predict(model, batch.x).argmax(1) == batch.y
        by_hand.append(right.float().mean().item())
    assert only.row.local_accuracy == pytest.approx(sum(by_hand) / 2)


def test_training_is_counted_without_pruned_groups():
    job = job_of()
    server = pruned_server(job)
    _, ((_, _, metrics), *_) = exchange(job, server)
    kept = nonzero(server.weights, job.method.task.graph.maskable)
    assert density(metrics.mask) == pytest.approx(density(kept))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gate_cost": -1.0},
        {"temperature": 0.0},
        {"theta_start": 1.0},
        {"prune_below": 0.995},
        {"server_lr": 0.0},
        {"threshold_lr": -1e-3},
    ],
)
def test_values_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        job_of(**wrong)


def test_the_first_broadcast_of_the_papers_network_is_that_of_fedavg_and_its_thresholds():
    shape = (3, 32, 32)
    task = ModelTask(lambda: read_model("lenet5_wide").build(shape, 10), "classes", shape)
    method = type(job_of().method)(task=task)
    down = method.broadcast(method.init_server(fold(0, "init")), fold(0))
    groups = 32 + 64 + 64 * 5 * 5 + 512  # filters of two convolutions, inputs of two linear layers
    assert paper_bytes(down) == 4 * (878_538 + groups)
    assert math.prod(down.alive["fc1.weight"].shape) == 1600
