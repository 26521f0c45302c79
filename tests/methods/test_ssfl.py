"""SSFL: one mask from the clients' saliencies, then FedAvg within it."""

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import EVERYONE, Cohort, Round
from fedsieve.methods import fedavg
from fedsieve.methods.ssfl import Server, Up
from small import SETTINGS, small_job

SIZE = 64 * 12 + 12 * 10  # weights of mlp(hidden=[12]) on 8x8 pictures


def hand_made(first, second):
    """Saliencies of two clients with 1 and 3 examples: two weights stand out, the others are 0."""
    replies = []
    for values, examples in ((first, 1), (second, 3)):
        saliency = {"fc1.weight": torch.zeros(12, 64), "fc2.weight": torch.zeros(10, 12)}
        saliency["fc1.weight"][2, 5], saliency["fc2.weight"][7, 1] = values
        replies.append(Up({}, {}, saliency, examples))
    return replies


# means by examples (4 + 3*0)/4 = 1 and (0 + 3*2)/4 = 1.5; equally (4 + 0)/2 = 2 and (0 + 2)/2 = 1
@pytest.mark.parametrize(
    ("weighting", "layer", "place"),
    [("samples", "fc2.weight", (7, 1)), ("uniform", "fc1.weight", (2, 5))],
)
def test_the_mask_keeps_the_largest_mean_saliency_over_all_layers(weighting, layer, place):
    method = small_job(method="ssfl", target_density=1 / SIZE, saliency_weighting=weighting).method
    server = method.init_server(fold(0, "init"))
    after = method.server_update(server, Round(hand_made((4, 0), (0, 2))), fold(0, "s"))
    assert {n: m.nonzero().tolist() for n, m in after.mask.items() if m.any()} == {
        layer: [list(place)]
    }
    assert after.weights[layer].count_nonzero() == 1
    assert after.weights[layer][place] == server.weights[layer][place]
    assert torch.equal(after.weights["fc1.bias"], server.weights["fc1.bias"])


def test_saliency_is_the_slope_of_the_loss_by_a_factor_of_each_weight():
    """Slope: d loss(c * w) / dc at c = 1 is the gradient times the weight."""
    job = small_job(method="ssfl")
    method, data, key = job.method, job.federation.batches(0), fold(0, "client")
    server = method.init_server(fold(0, "init"))
    down = method.broadcast(server, fold(0, "b"))
    up, _, metrics = method.client_update(down, (), data, key)
    batch = data.draw(fold(key, "saliency"))
    names = method.task.graph.maskable
    factors = {n: torch.ones_like(server.weights[n]).requires_grad_() for n in names}
    scaled = server.weights | {n: factors[n] * server.weights[n] for n in names}
    method.task.loss(scaled, batch, key).backward()
    assert up.mask == up.weights == {}
    assert metrics.processed == len(batch.y)
    assert set(up.saliency) == set(names)
    for name in names:
        torch.testing.assert_close(up.saliency[name], factors[name].grad.abs())


def after_the_mask(**options):
    job = small_job(method="ssfl", **options)
    method, data = job.method, job.federation.batches(0)
    server = method.init_server(fold(0, "init"))
    down = method.broadcast(server, fold(0, "b"))
    up, _, _ = method.client_update(down, (), data, fold(0, "c"))
    return method, data, method.server_update(server, Round([up]), fold(0, "s"))


def test_the_mask_stays_and_its_values_alone_travel():
    method, data, server = after_the_mask(target_density=0.25)
    mask = server.mask
    for _ in range(2):
        down = method.broadcast(server, fold(0, "b"))
        up, _, metrics = method.client_update(down, (), data, fold(1, "c"))
        assert up.saliency == {}
        for message in (down, up):
            assert tree.equal(message.mask, mask)
            assert method.paper_bytes(message) == 4 * (SIZE // 4 + 12 + 10)
        assert tree.equal(metrics.mask, mask)
        assert all(not up.weights[n][~m].any() for n, m in mask.items())
        assert any((up.weights[n] != down.weights[n]).any() for n in mask)
        server = method.server_update(server, Round([up]), fold(0, "s"))
        assert tree.equal(server.mask, mask)


def test_gradients_outside_the_mask_do_not_count_in_the_norm():
    """A gradient longer than the limit moves what is trained by the limit, at rate 1."""
    options = {"lr": 1.0, "schedule": "constant", "clip_norm": 1e-3, "steps": 1}
    method, data, server = after_the_mask(target_density=0.01, **options)
    up, _, _ = method.client_update(method.broadcast(server, fold(0, "b")), (), data, fold(1, "c"))
    moved = torch.cat([(v - server.weights[n]).flatten() for n, v in up.weights.items()])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_at_full_density_clients_train_as_in_fedavg():
    method, data, server = after_the_mask(target_density=1.0)
    plain = small_job(method="fedavg").method
    down = method.broadcast(server, fold(0, "b"))
    ours, _, _ = method.client_update(down, (), data, fold(1, "c"))
    theirs, _, _ = plain.client_update(
        fedavg.Down(server.weights, server.rounds), (), data, fold(1, "c")
    )
    assert tree.equal(ours.weights, theirs.weights)
    halves = [Up({}, {"w": torch.tensor([value])}, {}, n) for value, n in ((0.0, 1), (4.0, 3))]
    mask = {"w": torch.ones(1, dtype=torch.bool)}
    mean = method.server_update(Server({}, mask, 1), Round(halves), fold(0, "s"))
    assert mean.weights["w"].item() == 3.0


def test_all_clients_can_be_asked_for_the_mask_and_cohorts_from_then_on():
    rows = fedsieve.run(**SETTINGS | {"method": "ssfl", "rounds": 3, "scored_by": "all"}).rows
    assert [row.clients for row in rows] == [5, 3, 3]
    rows = fedsieve.run(**SETTINGS | {"method": "ssfl", "rounds": 2}).rows
    assert [row.clients for row in rows] == [3, 3]
    method = small_job(method="ssfl", preset="paper").method
    assert (method.cohort(3, 0), method.cohort(3, 4)) == (EVERYONE, Cohort(3, draw=4))


def test_density_is_the_target_from_the_first_round_on():
    rows = fedsieve.run(**SETTINGS | {"method": "ssfl", "target_density": 0.25}).rows
    assert [row.density for row in rows] == [0.25] * 4


def test_a_run_of_one_round_is_warned_of():
    with pytest.warns(UserWarning, match="finds the mask and trains nothing"):
        fedsieve.run(**SETTINGS | {"method": "ssfl", "rounds": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_density": 0.0}, "target_density"),
        ({"target_density": 1.5}, "target_density"),
        ({"target_density": 0.001}, "keeps none of the 888"),
        ({"lr": 0.0}, "lr"),
        ({"clip_norm": 0.0}, "clip_norm"),
    ],
)
def test_values_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        small_job(method="ssfl", **options)
