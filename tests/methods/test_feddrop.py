"""FedDrop: submodels are cut out, sent small, trained small, and averaged where they were held."""

import pytest
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.message import paper_bytes
from fedsieve.core.method import Round, message_to
from fedsieve.methods.feddrop import FedDrop
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from small import rounds_of, small_job


def job_of(**settings):
    return small_job(**{"method": "feddrop", "preset": "paper", "model": "conv_small", **settings})


def start(job):
    return job.method.init_server(fold(0, "init"))


def reply(job, down, client):
    data, state = job.federation.batches(client), job.method.init_client(client, fold(0))
    return job.method.client_update(down, state, data, fold(0, "client", client))


def test_the_submodel_has_the_kept_share_of_units_and_no_more():
    job = job_of(conv_drop=0.25, fc_drop=0.5)
    down = message_to(0, job.method.broadcast(start(job), fold(0, "broadcast")))
    shapes = {n: tuple(w.shape) for n, w in down.weights.items()}
    # conv_small: 16 and 32 filters, 100 units, 2x2 maps before the linear layers.
    assert shapes["conv1.weight"] == (12, 1, 3, 3)
    assert shapes["conv2.weight"] == (24, 12, 3, 3)
    assert shapes["fc1.weight"] == (50, 24 * 4)
    assert shapes["fc2.weight"] == (10, 50)
    assert paper_bytes(down) == 4 * (12 * 9 + 12 + 24 * 108 + 24 + 50 * 96 + 50 + 500 + 10)


def test_clients_get_different_units_in_every_round_from_a_key_both_ends_know():
    job = job_of()
    server = start(job)
    downs = [
        message_to(c, job.method.broadcast(server, fold(0, "b", t))) for t in (0, 1) for c in (0, 1)
    ]
    assert len({down.units for down in downs}) == 4
    again = message_to(1, job.method.broadcast(server, fold(0, "b", 1)))
    assert again.units == downs[3].units
    up, *_ = reply(job, again, 1)
    assert up.units == again.units
    assert {n: w.shape for n, w in up.weights.items()} == {
        n: w.shape for n, w in again.weights.items()
    }


def test_training_scales_activations_by_what_was_dropped():
    """The submodel's outputs are those of the whole model under inverted dropout of units."""
    job = job_of(conv_drop=0.25, fc_drop=0.5)
    method, server = job.method, start(job)
    down = message_to(0, method.broadcast(server, fold(0, "broadcast")))
    held = method._held(down.units)
    x = next(job.federation.batches(0).ordered()).x
    w = server.weights

    def drop(activations, name, share):
        mask = held[name].float() / share
        return activations * mask.view(1, -1, *[1] * (activations.dim() - 2))

    conv, pool, relu = torch.nn.functional.conv2d, torch.nn.functional.max_pool2d, torch.relu
    hidden = relu(pool(conv(x, w["conv1.weight"], w["conv1.bias"], padding=1), 2))
    hidden = drop(hidden, "conv1", 0.75)
    hidden = relu(pool(conv(hidden, w["conv2.weight"], w["conv2.bias"], padding=1), 2))
    hidden = drop(hidden, "conv2", 0.75).flatten(1)
    hidden = relu(torch.nn.functional.linear(hidden, w["fc1.weight"], w["fc1.bias"]))
    expected = torch.nn.functional.linear(drop(hidden, "fc1", 0.5), w["fc2.weight"], w["fc2.bias"])
    small = method.prior.effective(down.weights, fold(0))
    torch.testing.assert_close(method.task.predict(small, x), expected, rtol=1e-4, atol=1e-5)


def test_a_coordinate_is_the_mean_over_the_clients_that_held_it():
    job = job_of(model="mlp(hidden=[6])", fc_drop=0.5, server_optimiser="sgd", server_lr=1.0)
    method, server = job.method, start(job)
    sums = {n: torch.zeros_like(w) for n, w in server.weights.items()}
    held = {n: torch.zeros_like(w) for n, w in server.weights.items()}
    replies = []
    for client in range(2):
        down = message_to(client, method.broadcast(server, fold(3, "broadcast")))
        up, *_ = reply(job, down, client)
        replies.append(up)
        units = method._held(down.units)["fc1"].nonzero()[:, 0]
        for i, unit in enumerate(units):
            sums["fc1.weight"][unit] += up.weights["fc1.weight"][i]
            sums["fc1.bias"][unit] += up.weights["fc1.bias"][i]
            sums["fc2.weight"][:, unit] += up.weights["fc2.weight"][:, i]
            held["fc1.weight"][unit] += 1
            held["fc1.bias"][unit] += 1
            held["fc2.weight"][:, unit] += 1
        sums["fc2.bias"] += up.weights["fc2.bias"]
        held["fc2.bias"] += 1
    counts = set(held["fc1.bias"].tolist())
    assert {0.0, 1.0} <= counts or {1.0, 2.0} <= counts
    after = method.server_update(server, Round(replies), fold(0, "server"))
    for name, weight in server.weights.items():
        mean = torch.where(held[name] > 0, sums[name] / held[name].clamp(min=1), weight)
        torch.testing.assert_close(after.weights[name], mean, rtol=1e-5, atol=1e-6)


def test_without_dropping_it_is_fedopt(tmp_path):
    def final(folder, **settings):
        job = small_job(preset="paper", rounds=2, weighting="uniform", server_lr=1e-3, **settings)
        rounds = rounds_of(job, folder, eval_every=10**6)
        *_, last = rounds.play(rounds.start())
        return last.position.server.weights

    dropped = final(tmp_path / "a", method="feddrop", conv_drop=0.0, fc_drop=0.0)
    plain = final(tmp_path / "b", method="fedopt")
    for name, expected in plain.items():
        # Adam magnifies the rounding of gradients near 0; a step is 1e-3.
        torch.testing.assert_close(dropped[name], expected, rtol=0, atol=3e-6)


def test_macs_are_counted_on_the_submodel():
    job = job_of(conv_drop=0.25, fc_drop=0.5)
    down = message_to(0, job.method.broadcast(start(job), fold(0, "broadcast")))
    _, _, metrics = reply(job, down, 0)
    for name, mask in metrics.mask.items():
        assert int(mask.sum()) == down.weights[name].numel()


def test_a_client_keeps_its_submodel_as_its_own():
    job = job_of(personal=True)
    down = message_to(0, job.method.broadcast(start(job), fold(0, "broadcast")))
    up, state, _ = reply(job, down, 0)
    own = job.method.model(start(job), state)
    assert own["fc2.weight"].shape == up.weights["fc2.weight"].shape
    torch.testing.assert_close(own["fc2.weight"], 2 * up.weights["fc2.weight"])  # fc_drop = 0.5


def test_a_model_without_units_to_cut_is_refused():
    shape = (3, 32, 32)
    task = ModelTask(lambda: read_model("resnet20_gn").build(shape, 10), "classes", shape)
    with pytest.raises(ConfigError, match="no layer of this model has units"):
        FedDrop(task=task)
    with pytest.raises(ConfigError, match="conv_drop"):
        job_of(conv_drop=1.0)
