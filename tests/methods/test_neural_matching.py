"""PFNM and GPI-FNM over rounds: what is sent, how widths follow, where clients restart."""

import numpy as np
import pytest
import torch

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.method import Batch, Round, message_to
from fedsieve.jobs.config import make
from fedsieve.jobs.job import build
from fedsieve.matching import Settings, match, match_networks, visiting_orders
from fedsieve.matching.layout import layout_of
from fedsieve.methods.pfnm import Down, Up
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from small import rounds_of, small_job

KEY = fold(0, "test")


def job_of(method="pfnm", **settings):
    return small_job(**{"method": method, "preset": "paper", "cohort": 5, "lr": 0.01} | settings)


def replies_of(job, server, clients=range(5)):
    found = []
    for c in clients:
        down = message_to(c, job.method.broadcast(server, KEY))
        state = job.method.init_client(c, KEY)
        data = job.federation.batches(c)
        found.append(job.method.client_update(down, state, data, fold(KEY, c))[0])
    return found


def after_one_round(job):
    server = job.method.init_server(KEY)
    replies = replies_of(job, server)
    return replies, job.method.server_update(server, Round(replies), KEY)


def test_one_shot_is_the_plain_matching_of_what_was_sent():
    job = job_of(model="mlp(hidden=[12, 9])", gamma0=[1.0, 5.0], sigma2=0.5)
    replies, server = after_one_round(job)
    clients = [
        [r.weights[n].numpy().T for n in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")]
        + [r.weights[n].numpy().T for n in ("fc3.weight", "fc3.bias")]
        for r in replies
    ]
    counts = [
        np.bincount(torch.cat([b.y for b in job.federation.batches(c).ordered()]), minlength=10)
        for c in range(5)
    ]
    orders = visiting_orders(fold(KEY, "matching"), 2, 5, 5)
    expected = match(
        clients, class_counts=np.array(counts), gamma0=[1.0, 5.0], sigma2=0.5, orders=orders
    )
    for layer in range(3):
        weight = server.weights[f"fc{layer + 1}.weight"].numpy().T
        np.testing.assert_allclose(weight, expected.global_weights[2 * layer], atol=1e-6)
    for c in range(5):
        for layer in range(2):
            mine = server.labels[f"{c}.{layer}"].numpy()
            np.testing.assert_array_equal(mine, expected.assignments[layer][c])
    assert job.method.report(server).figures == {
        "atoms_1": float(expected.sizes[0]),
        "atoms_2": float(expected.sizes[1]),
    }


def test_nothing_goes_down_first_and_then_each_client_its_own_part():
    job = job_of()
    first = job.method.init_server(KEY)
    assert message_to(0, job.method.broadcast(first, KEY)) == Down({}, 0)
    _, server = after_one_round(job)
    for c in range(5):
        part = message_to(c, job.method.broadcast(server, KEY)).weights
        own = server.labels[f"{c}.0"]
        torch.testing.assert_close(part["fc1.weight"], server.weights["fc1.weight"][own])
        torch.testing.assert_close(part["fc2.weight"], server.weights["fc2.weight"][:, own])
        torch.testing.assert_close(part["fc2.bias"], server.weights["fc2.bias"])


def test_gpi_fnm_without_its_divergence_is_pfnm_bit_for_bit():
    _, plain = after_one_round(job_of("pfnm"))
    _, zero = after_one_round(job_of("gpi_fnm", eps=0.0))
    _, some = after_one_round(job_of("gpi_fnm", eps=0.4, kl="joint"))
    assert tree.equal(plain, zero)
    assert not tree.equal(plain, some)


def test_clients_of_different_widths_keep_them_and_are_counted_by_them(tmp_path):
    job = job_of(width_shares=[1.0, 0.5], model="mlp(hidden=[12, 8])", rounds=3)
    rounds = rounds_of(job, tmp_path)
    for played in rounds.play(rounds.start()):
        server = played.position.server
        for c in range(5):
            part = message_to(c, job.method.broadcast(server, KEY)).weights
            hidden = [len(part["fc1.bias"]), len(part["fc2.bias"])]
            assert hidden == ([12, 8] if c % 2 == 0 else [6, 4])
        assert 12 <= played.row.values["atoms_1"] <= 3 * 12 + 2 * 6
        assert 8 <= played.row.values["atoms_2"] <= 3 * 8 + 2 * 4
        examples = [job.federation.examples(c) * job.config.epochs for c in range(5)]
        wide = 64 * 12 + 12 * 8 + 8 * 10
        narrow = 64 * 6 + 6 * 4 + 4 * 10
        macs = 3 * sum(n * (wide if c % 2 == 0 else narrow) for c, n in enumerate(examples))
        assert played.row.macs_ideal == played.row.macs_realisable == macs


def test_a_later_round_without_sweeps_keeps_the_labels_and_averages_them():
    job = job_of(later_sweeps=0)
    replies, server = after_one_round(job)
    again = job.method.server_update(server, Round(replies), KEY)
    assert tree.equal(again.labels, server.labels)
    assert tree.equal(again.weights, server.weights)
    moved = [r._replace(weights={n: w + 1 for n, w in r.weights.items()}) for r in replies]
    after = job.method.server_update(server, Round(moved), KEY)
    assert tree.equal(after.labels, server.labels)
    # With all precisions 1 an atom of n clients moves by n / (n + 1) in its inputs.
    counts = torch.bincount(torch.cat(list(server.labels.values())))
    rise = after.weights["fc1.weight"] - server.weights["fc1.weight"]
    expected = (counts / (counts + 1))[:, None].expand_as(rise)
    torch.testing.assert_close(rise, expected, atol=1e-5, rtol=0)


def test_who_missed_the_last_matching_starts_from_the_most_used_atoms():
    job = job_of()
    first = job.method.init_server(KEY)
    server = job.method.server_update(first, Round(replies_of(job, first, clients=(0, 1, 2))), KEY)
    counts = torch.bincount(torch.cat(list(server.labels.values()))).tolist()
    ranked = sorted(range(len(counts)), key=lambda i: (-counts[i], i))[:12]
    part = message_to(4, job.method.broadcast(server, KEY)).weights
    torch.testing.assert_close(part["fc1.weight"], server.weights["fc1.weight"][ranked])
    later = job.method.server_update(server, Round(replies_of(job, server, clients=(1, 4))), KEY)
    assert {name.split(".")[0] for name in later.labels} == {"1", "4"}


def test_one_that_is_too_wide_for_the_global_model_starts_afresh():
    job = job_of(width_shares=[0.5, 1.0], gamma0=1e-30)
    first = job.method.init_server(KEY)
    server = job.method.server_update(first, Round(replies_of(job, first, clients=(0, 2))), KEY)
    assert len(server.weights["fc1.bias"]) == 6
    assert message_to(1, job.method.broadcast(server, KEY)).weights == {}
    later = job.method.server_update(server, Round(replies_of(job, server, clients=(0, 1))), KEY)
    assert len(later.weights["fc1.bias"]) == 12


def test_networks_start_apart_with_the_paper_s_deviation_and_biases():
    method = job_of(model="mlp(hidden=[100])").method
    one, other = (method.fresh(0, fold(KEY, c)) for c in (0, 1))
    assert not torch.equal(one["fc1.weight"], other["fc1.weight"])
    assert one["fc1.weight"].std().item() == pytest.approx(0.1, rel=0.05)
    assert (one["fc1.bias"] == 0.1).all()
    assert (one["fc2.bias"] == 0.1).all()


def test_the_tie_holds_weights_in_the_first_retraining_alone():
    """L2 in round 0; then reg/2 |W - start|^2 without biases; with factor 0 never again."""
    job = job_of(reg=1e4, optimiser="sgd", lr=1e-4)
    start = job.method.fresh(0, KEY)
    data, state = job.federation.batches(0), job.method.init_client(0, KEY)
    rest = {}
    for rounds in (0, 1, 2):
        up, *_ = job.method.client_update(Down(start, rounds), state, data, KEY)
        rest[rounds] = {n: (up.weights[n] - start[n]).abs().max().item() for n in start}
        if rounds == 0:  # rate times reg is 1: shrunken to nothing but the last gradient step
            assert max(w.abs().max().item() for w in up.weights.values()) < 0.01
    free = job_of(reg=0.0, optimiser="sgd", lr=1e-4)
    up, *_ = free.method.client_update(Down(start, 2), state, data, KEY)
    loose = {n: (up.weights[n] - start[n]).abs().max().item() for n in start}
    assert rest[2] == loose
    assert rest[1]["fc1.weight"] < 0.5 * loose["fc1.weight"]
    assert rest[1]["fc2.bias"] == pytest.approx(loose["fc2.bias"], rel=0.1)


def test_the_first_round_may_take_more_epochs():
    job = job_of(first_epochs=7, epochs=2)
    data, state = job.federation.batches(0), job.method.init_client(0, KEY)
    start = job.method.fresh(0, KEY)
    for rounds, epochs in ((0, 7), (1, 2)):
        *_, metrics = job.method.client_update(Down(start, rounds), state, data, KEY)
        assert metrics.processed == epochs * data.examples


@pytest.mark.parametrize("model", ["conv_small", "lenet5", "mlp(hidden=[9, 8, 7])"])
def test_shuffled_copies_of_a_network_fuse_into_one_that_computes_the_same(model):
    """Channels are followed through convolution, pooling and flatten."""
    shape = (1, 8, 8) if model == "conv_small" else (1, 28, 28)
    task = ModelTask(lambda: read_model(model).build(shape, 10), "classes", shape)
    params = task.init_params(KEY)
    layout = layout_of(task.graph, "test")
    whole = layout.params(layout.network(params))
    assert tree.equal(whole, params)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(6, *shape))).float()
    expected = task.predict(params, x)
    shuffled = [layout.part(params, [rng.permutation(w) for w in layout.hidden]) for _ in range(5)]
    for copy in shuffled:
        assert not torch.equal(copy[layout.layers[0].weight], params[layout.layers[0].weight])
        torch.testing.assert_close(task.predict(copy, x), expected, atol=1e-5, rtol=1e-4)
    # variances of 1e-3: these weights are small beside 1, and have to tell neurons apart
    matching = match_networks(
        [layout.network(copy) for copy in shuffled],
        None,
        Settings(sigma2=1e-3, sigma0_2=1e3, bias_mean=0.0),
        visiting_orders(Key(1), len(layout.hidden), 1, 5),
        blocks=layout.blocks,
    )
    assert matching.sizes == layout.hidden
    fused = task.predict(layout.params(matching.global_weights), x)
    torch.testing.assert_close(fused, expected, atol=1e-4, rtol=1e-3)


def test_matching_beats_the_mean_of_differently_started_networks():
    """Averaging networks that started apart destroys them; matching does not."""
    job = job_of(model="mlp(hidden=[30])", epochs=20, partition="iid", clients=5)
    replies, server = after_one_round(job)
    mean = tree.weighted_mean((r.weights, 1) for r in replies)
    rows = job.federation.test_union
    batches = list(job.federation.test_batches(rows))

    def accuracy(model):
        right = sum((job.method.task.predict(model, b.x).argmax(1) == b.y).sum() for b in batches)
        return right.item() / len(rows)

    assert accuracy(server.weights) > accuracy(mean) + 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "resnet8"}, "normalises"),
        (
            {
                "model": "lenet5_caffe",
                "dataset": "remote(owners=4, shape=[28, 28, 1], outputs=10)",
            },
            "has no bias",
        ),
        ({"model": "linear(bias=true)"}, "no hidden layer"),
        ({"width_shares": [1.5]}, "width_shares"),
        ({"width_shares": []}, "width_shares"),
        ({"gamma0": 0.0}, "gamma0"),
        ({"gamma0": [1.0, 2.0]}, "2 values for 1 hidden"),
        ({"sweeps": -1}, "sweeps"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"first_epochs": 0}, "first_epochs"),
        (
            {"dataset": "synthetic(task='values')", "model": "mlp", "partition": "iid"},
            "needs classes",
        ),
    ],
)
def test_what_cannot_be_matched_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        build(
            make({"method": "pfnm", "dataset": "digits", "model": "mlp", "clients": 4} | settings)
        )


def test_a_reply_names_its_client_and_its_classes():
    job = job_of()
    up = replies_of(job, job.method.init_server(KEY), clients=(3,))[0]
    assert isinstance(up, Up)
    assert up.client == 3
    ys = torch.cat([b.y for b in job.federation.batches(3).ordered() if isinstance(b, Batch)])
    assert up.classes["classes"].tolist() == torch.bincount(ys, minlength=10).tolist()
