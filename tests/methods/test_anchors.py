"""local_only, central and fediter_ht."""

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.method import Round
from small import rounds_of, small_job


def test_local_training_sends_nothing_and_keeps_models_apart(tmp_path):
    job = small_job(method="local_only", rounds=3)
    rounds = rounds_of(job, tmp_path)
    for played in rounds.play(rounds.start()):
        assert played.row.up_bytes == played.row.down_bytes == 0
        assert played.row.global_accuracy is None
    first, second = rounds.stores.states.known()[:2]
    assert not tree.equal(rounds.stores.states.get(first), rounds.stores.states.get(second))


def test_momentum_of_local_training_lives_on_over_rounds(tmp_path):
    """Two rounds of one epoch equal one loop over both epochs."""
    settings = {"method": "local_only", "clients": 1, "cohort": 1, "partition": "iid"}
    job = small_job(**settings, preset="paper", lr=0.1, rounds=2, optimiser="sgd(momentum=0.9)")
    rounds = rounds_of(job, tmp_path)
    list(rounds.play(rounds.start()))
    weights = {
        n: v.requires_grad_() for n, v in job.method.init_client(0, fold(7, "init")).weights.items()
    }
    optimiser = torch.optim.SGD(list(weights.values()), lr=0.1, momentum=0.9)
    for number in (1, 2):
        for batch in job.federation.batches(0).work(fold(7, "client", number, 0)):
            optimiser.zero_grad()
            job.method.task.loss(weights, batch, fold(0)).backward()
            optimiser.step()
    after = rounds.stores.states.get(0).weights
    for name, value in weights.items():
        torch.testing.assert_close(after[name], value.detach())


def test_central_training_sees_all_data_and_all_test_shards(tmp_path):
    job = small_job(method="central", rounds=1, epochs=2)
    rounds = rounds_of(job, tmp_path)
    (played,) = rounds.play(rounds.start())
    examples = sum(len(shard) for shard in job.partition.train)
    assert job.federation.num_clients == 1
    assert job.federation.num_shards == 5
    assert played.row.macs_dense == 3 * job.method.task.graph.macs * examples * 2
    assert played.row.global_accuracy is not None


def test_anchors_stand_on_either_side_of_fedavg():
    """On label-skewed shards: central on top, FedAvg a little below, far above chance."""
    settings = {
        "dataset": "digits", "model": "mlp(hidden=[32])", "partition": "dirichlet(0.3)",
        "clients": 10, "cohort": 10, "rounds": 20, "batch_size": 20, "lr": 0.1, "epochs": 2,
        "eval_every": 20, "seed": 3,
    }  # fmt: skip
    central = fedsieve.run(method="central", **settings).summary.global_accuracy
    federated = fedsieve.run(method="fedavg", **settings).summary.global_accuracy
    assert central > 0.95
    assert central + 0.01 > federated > 0.85


@pytest.mark.parametrize("density", [0.05, 0.25])
def test_fediter_ht_holds_exactly_m_weights_in_every_message(density):
    job = small_job(method="fediter_ht", preset="paper", target_density=density, rounds=2)
    method = job.method
    server = method.init_server(fold(0, "init"))
    size = sum(server.weights[n].numel() for n in method.task.graph.maskable)
    kept = int(density * size)
    for _ in range(2):
        down = method.broadcast(server, fold(0, "b"))
        up, _, metrics = method.client_update(down, (), job.federation.batches(0), fold(0, "c"))
        for message in (down, up):
            assert sum(int(m.count_nonzero()) for m in message.mask.values()) == kept
            biases = sum(v.numel() for n, v in message.weights.items() if n not in message.mask)
            assert method.paper_bytes(message) == 4 * (kept + biases)
        assert tree.equal(metrics.mask, up.mask)
        server = method.server_update(server, Round([up]), fold(0, "s"))


def test_fediter_ht_at_full_density_is_fedavg(tmp_path):
    settings = {"dataset": "digits", "clients": 4, "rounds": 2, "model": "mlp(hidden=[8])"}
    sgd = {"optimiser": "sgd", "lr": 0.1}
    sparse = fedsieve.run(method="fediter_ht", target_density=1.0, **settings, **sgd)
    plain = fedsieve.run(method="fedavg", **settings, **sgd)
    for name, value in plain.model.items():
        torch.testing.assert_close(sparse.model[name], value)


def test_fediter_ht_from_zero_recovers_a_planted_support():
    """Linear regression with a sparse truth: with all clients IID the support is found."""
    result = fedsieve.run(
        dataset="synthetic(task=values, rows=2000, features=200, density=0.05, snr=20)",
        partition="iid", clients=10, cohort=10, rounds=30, steps=10, batch_size=20,
        method="fediter_ht", preset="paper", target_density=0.05, start="zero", optimiser="sgd",
        lr=0.005, eval_every=30,
    )  # fmt: skip
    assert result.summary.density == pytest.approx(0.05)
    assert result.summary.global_accuracy > 0.9  # R2; the noise alone leaves 1/21 unexplained
