"""LG-FedAvg: what is averaged, what stays with a client, and who is sent what."""

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round, message_to
from fedsieve.methods.lg_fedavg import Down, LGFedAvg, Server, State, Up
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from small import SETTINGS, small_job

NOBODY = torch.zeros(0, dtype=torch.int64)
LOCAL, SHARED = {"fc1.weight", "fc1.bias"}, {"fc2.weight", "fc2.bias"}


def small(**options):
    return small_job(method="lg_fedavg", **options)


def started(method, client=0):
    return method.init_server(fold(0, "init")), method.init_client(client, fold(0, "init"))


def down_to(client, method, server):
    return message_to(client, method.broadcast(server, fold(0, "broadcast")))


def test_the_last_layer_is_shared_and_the_others_stay():
    server, state = started(small(warm_start=0).method)
    assert set(server.shared) == SHARED
    assert set(state.local) == LOCAL


@pytest.mark.parametrize(
    ("model", "shape", "layers", "values"),
    [("lenet5_caffe", (1, 28, 28), 1, 5_000), ("cnn7", (3, 32, 32), 2, 16_384 + 1_280)],
)
def test_messages_of_the_papers_nets_have_the_values_of_its_comparison(
    model, shape, layers, values
):
    task = ModelTask(lambda: read_model(model).build(shape, 10), "classes", shape)
    method = LGFedAvg(task=task, warm_start=0, shared_layers=layers)
    assert method.paper_bytes(down_to(0, method, started(method)[0])) == 4 * values


def test_normalisation_stays_local():
    method = small(warm_start=0, shared_layers=10, model="resnet8").method
    server, state = started(method)
    tensors = {t for norm in method.task.graph.norms for t in norm.tensors}
    assert set(state.local) == tensors
    assert len(server.shared) == 11


def test_more_layers_than_there_are_is_all_of_them():
    server, state = started(small(warm_start=0, shared_layers=3).method)
    assert set(server.shared) == LOCAL | SHARED
    assert not state.local


def test_both_parts_are_trained_together():
    """One step of SGD from (phi_k, psi), against autograd on all tensors."""
    job = small(warm_start=0, clip_norm=None, schedule="constant", lr=0.5, steps=1)
    method = job.method
    server, state = started(method)
    down, data = down_to(0, method, server), job.federation.batches(0)
    up, after, _ = method.client_update(down, state, data, fold(1))
    weights = {n: v.clone().requires_grad_() for n, v in (state.local | server.shared).items()}
    (batch,) = data.work(fold(1))
    method.task.loss(weights, batch, fold(0)).backward()
    for name, value in weights.items():
        found = after.local[name] if name in LOCAL else up.shared[name]
        torch.testing.assert_close(found, (value - 0.5 * value.grad).detach())


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 4.0), ("uniform", 3.0)])
def test_the_server_takes_the_mean_of_the_shared_part(weighting, mean):
    method = small(warm_start=0, weighting=weighting).method
    replies = [Up({"w": torch.tensor([v])}, c, n) for c, (v, n) in enumerate([(1.0, 1), (5.0, 3)])]
    before = Server({"w": torch.zeros(1)}, {}, NOBODY, 4)
    after = method.server_update(before, Round(replies), fold(0))
    assert after.shared["w"].item() == mean
    assert after.rounds == 5


def test_all_layers_shared_is_fedavg():
    settings = SETTINGS | {"model": "resnet8", "rounds": 2, "steps": 2}
    plain = fedsieve.run(**settings, method="fedavg")
    for warm_start in (0, 1):
        shared = {"shared_layers": None, "warm_start": warm_start}
        found = fedsieve.run(**settings, method="lg_fedavg", **shared)
        assert found.rows[-1].local_accuracy == plain.rows[-1].local_accuracy
        for name, value in plain.model.items():
            torch.testing.assert_close(found.model[name], value)


def test_the_warm_start_is_fedavg_and_clients_get_their_part_of_it_once():
    job = small(warm_start=1)
    method = job.method
    server, state = started(method)
    down = down_to(0, method, server)
    assert set(down.shared) == LOCAL | SHARED
    up, state, _ = method.client_update(down, state, job.federation.batches(0), fold(1))
    assert not state.local
    server = method.server_update(server, Round([up]), fold(0))
    assert tree.equal(server.base | server.shared, up.shared)
    first = down_to(0, method, server)
    assert tree.equal(first.base, {n: up.shared[n] for n in up.shared if n in LOCAL})
    up, state, _ = method.client_update(first, state, job.federation.batches(0), fold(2))
    assert set(up.shared) == SHARED
    assert set(state.local) == LOCAL
    server = method.server_update(server, Round([up]), fold(0))
    assert not down_to(0, method, server).base
    assert down_to(1, method, server).base


def test_a_client_that_was_never_asked_is_scored_with_the_base_and_the_newest_shared_part():
    method = small(warm_start=1).method
    server = Server({"w": torch.ones(1)}, {"v": torch.zeros(1)}, NOBODY, 3)
    assert method.model(server, State(4, {}, {})) == {"v": 0, "w": 1}
    assert method.model(server, ()) is None


def test_what_a_client_is_scored_with():
    job = small(warm_start=0)
    data = job.federation.batches(0)
    for scored in ("newest", "heard", "own"):
        method = small(warm_start=0, scored=scored).method
        server, state = started(method)
        down = down_to(0, method, server)
        up, after, _ = method.client_update(down, state, data, fold(1))
        newest = server._replace(shared=tree.map_leaves(lambda x: x + 1, server.shared))
        expected = {"newest": newest.shared, "heard": down.shared, "own": up.shared}[scored]
        assert tree.equal(method.model(newest, after), after.local | expected)


def test_a_reply_that_was_lost_does_not_undo_a_local_part():
    job = small(warm_start=1)
    method = job.method
    weights = method.task.init_params(fold(0))
    base, shared = ({n: weights[n] for n in names} for names in (LOCAL, SHARED))
    own = tree.map_leaves(lambda x: x + 1, base)
    after = [
        method.client_update(Down(shared, sent, 2), State(0, own, {}), job.federation.batches(0), 5)
        for sent in (base, {})
    ]
    assert tree.equal(after[0][1], after[1][1])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shared_layers": 0}, "local_only"),
        ({"warm_start": -1}, "warm_start"),
        ({"lr": 0.0}, "lr"),
        ({"clip_norm": 0.0}, "clip_norm"),
    ],
)
def test_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        small(**options)


def test_a_warm_start_as_long_as_the_run_is_spoken_of():
    with pytest.warns(UserWarning, match="it is FedAvg"):
        small(warm_start=4)
