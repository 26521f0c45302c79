"""What only variational dropout promises (specification variational_dropout, section 12)."""

from collections import defaultdict
from decimal import Decimal
from itertools import islice

import pytest
import torch
from torch import nn

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round, message_to
from fedsieve.inference.variational import Posterior
from fedsieve.jobs.config import make
from fedsieve.jobs.execution import open_rounds
from fedsieve.jobs.job import build
from fedsieve.methods.vardrop import Down, VarDrop
from fedsieve.recipes.papers.sizes import GREY28, gib, sizes
from fedsieve.sparsity import compaction
from fedsieve.wire.codec import Decoder, encode
from small import SETTINGS, rounds_of, small_job

KEY = fold(0, "test")
pytestmark = pytest.mark.filterwarnings("ignore:vardrop. warm-up")  # runs of a few rounds


def vardrop_job(**settings):
    defaults = {"method": "vardrop", "preset": "paper", "partition": "iid", "clients": 3}
    return small_job(**defaults | {"lr": 0.01} | settings)


def played(job, folder, rounds=3):
    """The loop's stores and all positions, server states first."""
    loop = rounds_of(job, folder)
    return loop, list(islice(loop.play(loop.start()), rounds))


def over_the_wire(message):
    return Decoder().decode(encode(message).data, type(message))


def round_of(method, server, replies):
    sent = method.broadcast(server, KEY)
    return Round(replies, lambda client: message_to(client, sent))


def heard(method, server):
    """The server's model once it has moved by its own broadcast."""
    return method._step(server.model, message_to(0, method.broadcast(server, KEY)))


def exchange(method, server, states, data, number):
    """One round among the given devices, without an engine; returns the server and what arrived."""
    ups = {}
    for client in sorted(states):
        down = over_the_wire(message_to(client, method.broadcast(server, KEY)))
        key = fold(KEY, number, client)
        up, states[client], _ = method.client_update(down, states[client], data[client], key)
        ups[client] = over_the_wire(up)
    return method.server_update(server, round_of(method, server, list(ups.values())), KEY), ups


def federation(job, clients=3):
    method, key = job.method, fold(0, "init")
    states = {client: method.init_client(client, key) for client in range(clients)}
    data = {client: job.federation.batches(client) for client in range(clients)}
    return method, method.init_server(key), states, data


@pytest.mark.parametrize("share_alpha", [False, True])
def test_masked_gradients_are_not_sent_and_leave_weights_where_they_are(share_alpha):
    job = vardrop_job(log_variance=-5.0, share_alpha=share_alpha)
    method, server, states, data = federation(job)
    for number in range(2):
        server, ups = exchange(method, server, states, data, number)
    before = states[0].model.posterior.weights
    exchange(method, server, states, data, 2)
    after = states[0].model
    for name, mask in ups[0].mask.items():
        assert 0 < int(mask.sum()) < mask.numel()
        assert (ups[0].weights[name][~mask] == 0).all()
        absent = ~server.parcel.mask[name]
        assert (server.parcel.content.weights[name][absent] == 0).all()
        assert not torch.equal(after.posterior.weights[name], before[name])
        assert torch.equal(after.posterior.weights[name][absent], before[name][absent])
        assert (after.moments[0][f"first/{name}"][absent] == 0).all()
        assert (after.moments[0][f"second/{name}"][absent] == 0).all()
        if share_alpha:
            assert (ups[0].log_variance[name][~mask] == 0).all()
            assert (server.parcel.content.log_variance[name][absent] == 0).all()


def test_without_noise_threshold_and_kl_it_is_dense_federated_sgd():
    job = vardrop_job(log_variance=-20.0, log_threshold=10.0, kl_weight=0.0, optimiser="sgd")
    method, server, states, data = federation(job)
    task, weights = method.task, states[0].model.posterior.weights
    for number in range(20):
        grads = []
        for client in range(3):
            batch = data[client].draw(fold(fold(KEY, number, client), "batch", 0))
            leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
            loss = task.loss(leaves, batch, KEY)
            grads.append(torch.autograd.grad(loss, list(leaves.values())))
        means = [sum(part) / 3 for part in zip(*grads, strict=True)]
        server, _ = exchange(method, server, states, data, number)
        expected = {n: w - 0.01 * g for (n, w), g in zip(weights.items(), means, strict=True)}
        found = heard(method, server).posterior.weights
        for name, value in expected.items():
            # 64 pixels with variance exp(-20), and 1e-8 under the root: noise of 4e-4 in outputs,
            # which changes a gradient by at most 4e-4 times the largest pixel, 5; lr is 0.01.
            torch.testing.assert_close(found[name], value, atol=(number + 1) * 2e-5, rtol=0)
        weights = expected


@pytest.mark.parametrize("wire", ["fp32", "int8"])
def test_devices_that_share_alpha_stay_bit_identical(wire, tmp_path):
    job = vardrop_job(share_alpha=True, log_variance=-5.0, wire=wire, warmup=2, ramp=1)
    with open_rounds(job, tmp_path, rounds=6, eval_every=10**6) as loop:
        server = list(loop.play(loop.start()))[-1].position.server
        models = [loop.stores.states.get(client).model for client in range(3)]
    assert tree.equal(models[0], models[1])
    assert tree.equal(models[0], models[2])
    assert tree.equal(models[0], server.model)  # what is deployed is what devices have
    assert job.method.model(server, ())["fc1.weight"].count_nonzero() > 0
    masked = server.kept["fc1.weight"]
    assert 0 < int(masked.sum()) < masked.numel()


def test_devices_with_alpha_of_their_own_share_weights_alone(tmp_path):
    job = vardrop_job(log_variance=-5.0, wire="bf16")
    with open_rounds(job, tmp_path, rounds=4, eval_every=10**6) as loop:
        server = list(loop.play(loop.start()))[-1].position.server
        models = [loop.stores.states.get(client).model for client in range(3)]
    assert tree.equal(models[0].posterior.weights, models[1].posterior.weights)
    assert tree.equal(models[0].moments[0], models[2].moments[0])
    assert tree.equal(models[0].posterior.weights, server.model.posterior.weights)
    assert not tree.equal(models[0].posterior.log_variance, models[1].posterior.log_variance)


def test_what_is_masked_stays_masked_where_alpha_is_shared():
    method, server, states, data = federation(vardrop_job(share_alpha=True, log_variance=-5.0))
    before = server.kept
    for number in range(6):
        server, ups = exchange(method, server, states, data, number)
        for name, mask in ups[0].mask.items():
            assert not (mask & ~before[name]).any()
        before = ups[0].mask
    assert 0 < int(before["fc1.weight"].sum()) < before["fc1.weight"].numel()


def test_masks_that_did_not_change_are_named_and_not_sent(tmp_path):
    # The name is in the header: eight bytes with what says so (tests of the codec).
    job = vardrop_job(log_variance=-5.0, lr=1e-9, variance_lr=1e-9)
    _, steps = played(job, tmp_path, rounds=4)
    masks = [{m.mask_bytes for m in step.messages if m.direction == "up"} for step in steps]
    assert min(masks[0]) > 0
    assert masks[2:] == [{0}, {0}]
    assert 0 < steps[-1].row.density < 1


def test_the_first_step_sends_every_value_and_shared_alpha_nearly_doubles_it(tmp_path):
    alone, shared = (
        played(vardrop_job(share_alpha=share, log_variance=-20.0), tmp_path / str(share))[1]
        for share in (False, True)
    )
    params = alone[0].position.server.model.posterior.weights
    size = sum(w.numel() for w in params.values())
    biases = sum(w.numel() for n, w in params.items() if n.endswith("bias"))
    assert alone[0].row.up_paper_bytes == 3 * 4 * size
    assert alone[0].row.down_paper_bytes == 0  # nothing to send back yet
    assert alone[1].row.down_paper_bytes == 3 * 4 * size
    assert shared[1].row.up_paper_bytes == 3 * 4 * (2 * size - biases)


def test_the_dense_volume_of_a_device_is_the_formula_of_the_paper():
    """2 * 4 P bytes a step; ours has 1.38 M values (section 8), the paper's 1.31 to 1.32 M."""
    size = 64 * (25 + 1) + 64 * (25 * 64 + 1) + 384 * (3136 + 1) + 192 * (384 + 1) + 10 * (192 + 1)
    steps = Decimal(10 * 60_000) / 512
    assert gib(2 * sizes("cifarnet", GREY28, 10).trainable * steps) == 8 * size * steps / 2**30
    for epochs, printed in ((10, "11.5"), (30, "34.5")):
        low, high = (gib(2 * p * steps * epochs / 10) for p in (1_310_000, 1_320_000))
        assert low < Decimal(printed) + Decimal("0.05")
        assert high > Decimal(printed) - Decimal("0.05")


def test_the_pruned_model_answers_like_the_masked_one(tmp_path):
    job = vardrop_job(model="conv_small", log_variance=-1.0)
    _, rounds = played(job, tmp_path, 1)
    server, graph, task = rounds[-1].position.server, job.method.task.graph, job.method.task
    deployed = job.method.model(server, ())
    masked = {
        n: torch.where(server.kept[n], w, 0) if n in server.kept else w
        for n, w in heard(job.method, server).posterior.weights.items()
    }
    assert tree.equal(deployed, masked)
    small = compaction.compact(graph, deployed, compaction.alive_channels(graph, server.kept))
    assert sum(w.numel() for w in small.values()) < sum(w.numel() for w in deployed.values())
    x = next(job.federation.test_batches(job.federation.test(0))).x
    torch.testing.assert_close(task.predict(small, x), task.predict(deployed, x))


def test_most_devices_decide_what_is_kept_and_one_is_enough_to_send():
    job = vardrop_job(clients=4)
    method, server, states, data = federation(job, 4)
    _, ups = exchange(method, server, states, data, 0)
    masks = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    name = "fc1.weight"

    def as_mask(bits):
        whole = {n: torch.ones_like(m) for n, m in ups[0].mask.items()}
        whole[name] = whole[name].clone()
        whole[name][0, :4] = torch.tensor(bits, dtype=torch.bool)
        return whole

    replies = []
    for client, bits in enumerate(masks):
        mask = as_mask(bits)
        weights = {
            n: torch.where(mask[n], 1.0, 0.0) if n in mask else w * 0 + 1
            for n, w in ups[client].weights.items()
        }
        replies.append(ups[client]._replace(mask=mask, weights=weights))
    after = method.server_update(server, round_of(method, server, replies), KEY)
    assert after.kept[name][0, :4].tolist() == [True, False, False, False]  # two of four: a tie
    assert after.parcel.mask[name][0, :4].tolist() == [True, True, True, False]
    assert after.parcel.content.weights[name][0, :4].tolist() == [1.0, 0.5, 0.25, 0.0]
    assert after.examples == sum(d.examples for d in data.values())


@pytest.mark.parametrize("share_alpha", [False, True])
def test_a_device_that_missed_a_round_catches_up(share_alpha):
    job = vardrop_job(share_alpha=share_alpha)
    method, server, states, data = federation(job)
    server, _ = exchange(method, server, states, data, 0)
    away = states.pop(2)
    server, _ = exchange(method, server, states, data, 1)
    states[2] = away
    assert message_to(1, method.broadcast(server, KEY)).model == {}
    server, _ = exchange(method, server, states, data, 2)
    assert message_to(2, method.broadcast(server, KEY)).model == {}
    models = [states[client].model for client in range(3)]
    assert tree.equal(models[2].posterior.weights, models[0].posterior.weights)
    assert tree.equal(models[2].moments[0], models[0].moments[0])
    assert tree.equal(models[2], models[0]) is share_alpha


def test_late_gradients_arrive_within_the_bound_and_meanwhile_nothing_is_sent(tmp_path):
    bound = 3
    job = vardrop_job(async_staleness=bound, rounds=30)
    loop = rounds_of(job, tmp_path)
    position, waits, seen = loop.start(), defaultdict(int), set()
    for round_ in islice(loop.play(position), 30):
        for client in range(3):
            parcel = loop.stores.states.get(client).parcel
            sent = next(m for m in round_.messages if (m.client, m.direction) == (client, "up"))
            if parcel.content.weights:
                waits[client] += 1
                assert sent.paper_bytes == 0
            else:
                seen.add(waits.pop(client, 0))
                assert sent.paper_bytes > 0
    assert seen == set(range(bound + 1))


def test_what_was_due_while_a_device_was_away_is_sent_when_it_is_back():
    job = vardrop_job(async_staleness=1)
    method, server, states, data = federation(job)
    _, ups = exchange(method, server, states, data, 0)
    late = next(client for client, up in ups.items() if not up.mask)
    down = message_to(late, method.broadcast(server, KEY))._replace(rounds=5)
    up, after, metrics = method.client_update(down, states[late], data[late], KEY)
    assert tree.equal(up.weights, states[late].parcel.content.weights)
    assert not after.parcel.mask
    assert metrics.processed == 0


def test_asynchronous_exchange_is_decided_by_the_seed():
    settings = SETTINGS | {
        "method": "vardrop",
        "preset": "paper",
        "async_staleness": 2,
        "rounds": 6,
    }
    first, second = fedsieve.run(**settings), fedsieve.run(**settings)
    together = fedsieve.run(**settings | {"async_staleness": 0})
    assert first.summary.model_hash == second.summary.model_hash
    assert first.summary.model_hash != together.summary.model_hash


def test_local_steps_send_what_they_changed_and_devices_agree_on_the_mean():
    job = vardrop_job(local_steps=3, warmup=9, optimiser="sgd")
    method, server, states, data = federation(job)
    start = states[0].model.posterior.weights
    expected = []
    for client in range(3):
        weights, key = start, fold(KEY, 0, client)
        for step in range(3):
            batch = data[client].draw(fold(key, "batch", step))
            leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
            grads = torch.autograd.grad(method.task.loss(leaves, batch, key), list(leaves.values()))
            weights = {n: w - 0.01 * g for (n, w), g in zip(weights.items(), grads, strict=True)}
        expected.append(weights)
    server, _ = exchange(method, server, states, data, 0)
    exchange(method, server, states, data, 1)
    for name in start:
        mean = sum(weights[name] for weights in expected) / 3
        for client in range(3):
            found = states[client].model.posterior.weights[name]
            torch.testing.assert_close(found, mean)


def test_local_steps_that_share_alpha_average_by_precision():
    job = vardrop_job(local_steps=2, share_alpha=True, log_variance=-5.0)
    method, server, states, data = federation(job)
    start = server.model.posterior.weights["fc1.weight"]
    server, ups = exchange(method, server, states, data, 0)
    masks = torch.stack([up.mask["fc1.weight"] for up in ups.values()]).double()
    lost = torch.stack([up.weights["fc1.weight"] for up in ups.values()]).double()
    fallen = torch.stack([up.log_variance["fc1.weight"] for up in ups.values()]).double()
    precision = torch.exp(5.0 + fallen) * masks  # log-variances are -5 less what they have lost
    mean = start - ((precision * lost).sum(0) / precision.sum(0)).nan_to_num()
    found = server.model.posterior
    torch.testing.assert_close(found.weights["fc1.weight"].double(), mean, atol=1e-6, rtol=1e-5)
    kept = masks.sum(0) > 0
    assert 0 < int(kept.sum()) < kept.numel()
    pooled = -torch.log(precision.sum(0) / masks.sum(0))[kept]
    variance = found.log_variance["fc1.weight"].double()[kept]
    torch.testing.assert_close(variance, pooled, atol=1e-5, rtol=1e-5)
    assert (found.log_variance["fc1.weight"][~kept] == -5.0).all()


def test_shared_log_variances_move_on_a_wire_that_rounds_too(tmp_path):
    """At -10 numbers of bf16 are 0.06 apart, more than two steps of 0.005."""
    settings = {"local_steps": 2, "share_alpha": True, "log_variance": -10.0, "wire": "bf16"}
    job = vardrop_job(rounds=5, **settings)
    _, rounds = played(job, tmp_path, 5)
    found = rounds[-1].position.server.model.posterior.log_variance
    for values in found.values():
        moved = (values + 10).abs()
        assert moved.mean() > 0.01
        assert moved.max() <= 5 * 2 * 0.00505


def test_the_last_exchange_is_part_of_what_is_deployed(tmp_path):
    job = vardrop_job(local_steps=3, rounds=1, log_variance=-8.0)
    _, (only,) = played(job, tmp_path, 1)
    server = only.position.server
    start = job.method.init_server(fold(0, "init")).model.posterior.weights
    deployed = job.method.model(server, ())
    assert start.keys() == deployed.keys()
    lost = server.parcel.content.weights
    for name, kept in server.kept.items():
        moved = server.model.posterior.weights[name] - lost[name]
        assert torch.equal(deployed[name][kept], moved[kept])
        assert lost[name].abs().sum() > 0


def test_log_variances_do_not_decay():
    decay = "adam(weight_decay=0.1)"
    method = vardrop_job(optimiser=decay, variance_optimiser=decay).method
    model = method.start(KEY)
    weights, own = model.posterior
    still = Posterior(
        {n: torch.zeros_like(w) for n, w in weights.items()},
        {n: torch.zeros_like(v) for n, v in own.items()},
    )
    after = method.descend(model, still, 0).posterior
    assert tree.equal(after.log_variance, own)
    assert all(after.weights[n].norm() < w.norm() for n, w in weights.items())


def test_with_late_devices_most_of_all_last_masks_decide():
    job = vardrop_job(async_staleness=3, log_variance=-3.0, warmup=3)
    method, server, states, data = federation(job)
    whole = {name: torch.ones_like(kept) for name, kept in server.kept.items()}
    last, sizes, mixed = {}, set(), 0
    for number in range(12):
        server, ups = exchange(method, server, states, data, number)
        senders = {client: up for client, up in ups.items() if up.weights}
        given = {
            client: up.mask or whole for client, up in senders.items()
        }  # whole: of the warm-up
        last |= given
        sizes.add(len(senders))
        mixed += len({bool(up.mask) for up in senders.values()}) == 2
        for name, union in server.parcel.mask.items():
            assert torch.equal(union, sum(mask[name] for mask in given.values()) > 0)
        for name, mean in server.parcel.content.weights.items():  # who is late counts as 0
            total = sum(up.weights[name] for up in senders.values())
            torch.testing.assert_close(mean, total / len(ups))
        for name, kept in server.kept.items():
            if last:
                votes = torch.stack([mask[name] for mask in last.values()]).sum(0)
                assert torch.equal(kept, 2 * votes > len(last))
    assert len(sizes) > 1
    assert mixed


@pytest.mark.parametrize("settings", [{}, {"share_alpha": True, "local_steps": 2}])
@pytest.mark.parametrize("round_", [2, 3, 4, 5])  # two of the warm-up, the first two after it
@pytest.mark.parametrize(
    "forged", [{"x": torch.ones(1) > 0}, {"fc1.weight": torch.ones(1, 64) > 0}, {}]
)
def test_a_mask_of_other_tensors_or_shapes_does_not_end_the_run(
    forged, round_, settings, tmp_path, monkeypatch
):
    job = vardrop_job(warmup=3, rounds=6, log_variance=-5.0, **settings)
    honest = VarDrop.client_update

    def update(self, down, state, data, key):
        up, after, metrics = honest(self, down, state, data, key)
        is_forged = state.device == 1 and down.rounds == round_ - 1
        return (up._replace(mask=forged) if is_forged else up), after, metrics

    monkeypatch.setattr(VarDrop, "client_update", update)
    _, rounds = played(job, tmp_path, 6)
    assert sum(r.row.failed for r in rounds) <= 1  # the forger's, where there is a mask to compare
    server = rounds[-1].position.server
    weights = server.model.posterior.weights
    for found in (server.kept, server.parcel.mask):
        assert all(m.shape == weights[n].shape for n, m in found.items())
    assert server.kept.keys() == {"fc1.weight", "fc2.weight"}
    assert bool(server.parcel.mask) is not job.method.is_averaging
    assert 0 < rounds[-1].row.density < 1


def test_a_schedule_that_falls_to_0_at_once_can_be_run(tmp_path):
    job = vardrop_job(schedule="exponential(gamma=0)", rounds=2)
    assert len(played(job, tmp_path, 2)[1]) == 2


def test_the_warm_up_is_dense_training_without_noise(tmp_path):
    job = vardrop_job(warmup=3, log_variance=5.0, rounds=4)
    _, rounds = played(job, tmp_path, 4)
    densities = [r.row.density for r in rounds]
    assert densities[:3] == [1.0, 1.0, 1.0]
    assert densities[3] < 1  # so much noise drowns many weights as soon as it is counted
    quiet = vardrop_job(warmup=3, log_variance=-20.0)
    _, others = played(quiet, tmp_path / "quiet", 3)
    weights = [r[2].position.server.model.posterior.weights for r in (rounds, others)]
    assert tree.equal(*weights)


def test_the_kl_term_grows_over_the_ramp_and_waits_for_the_number_of_examples():
    job = vardrop_job(warmup=2, ramp=4, log_variance=-5.0)
    method, _, states, data = federation(job)

    def bound(rounds, examples):
        down = Down({}, {}, {}, {}, examples, rounds)
        _, _, metrics = method.client_update(down, states[0], data[0], KEY)
        return metrics.values["train_loss"]

    plain, half, whole, later = bound(2, 100), bound(4, 100), bound(6, 100), bound(60, 100)
    assert half - plain == pytest.approx((whole - plain) / 2, rel=1e-3)
    assert whole == pytest.approx(later)
    assert bound(6, 0) == pytest.approx(plain)


def test_statistics_of_normalisation_stay_local_and_are_averaged_on_the_server(tmp_path):
    def module():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )

    job = build(
        make({"method": "vardrop", "preset": "paper", "partition": "iid", "clients": 3}),
        model=module,
    )
    with open_rounds(job, tmp_path, rounds=2, eval_every=2) as loop:
        server = list(loop.play(loop.start()))[-1].position.server
        models = [loop.stores.states.get(client).model.posterior.weights for client in range(3)]
    for name in ("1.running_mean", "1.running_var"):
        own = torch.stack([model[name] for model in models])
        assert not torch.equal(own[0], own[1])
        torch.testing.assert_close(job.method.model(server, ())[name], own.mean(0))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ramp", 0),
        ("lr", 0),
        ("local_steps", 0),
        ("async_staleness", -1),
        ("warmup", -1),
        ("clip_norm", 0),
    ],
)
def test_values_that_cannot_work_are_refused(option, value):
    with pytest.raises(ConfigError, match=option):
        vardrop_job(**{option: value})


def test_where_devices_keep_models_all_are_the_cohort_whatever_was_asked_for():
    assert vardrop_job(clients=5, cohort=2).config.cohort == 5
    assert small_job(method="vardrop", share_alpha=False, clients=5, cohort=2).config.cohort == 5
