"""Sub-FedAvg: when a client prunes and what; channels with all that belongs to them."""

import math
from itertools import islice

import pytest
import torch

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round, message_to
from fedsieve.methods.sub_fedavg import Server, State, SubFedAvg, Up
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.sparsity import compaction, masks
from small import rounds_of, small_job

KEY = fold(0, "init")
OPEN = {"gate_on": "accuracy", "gate": 0.0, "distance": 0.0}
HYBRID = OPEN | {"structure": "hybrid", "model": "resnet8", "steps": 4, "channel_distance": 0.0}


def small(**options):
    return small_job(method="sub_fedavg", **options)


def exchange(job, server=None, state=None):
    """The reply, state and metrics of client 0."""
    server = job.method.init_server(KEY) if server is None else server
    state = job.method.init_client(0, KEY) if state is None else state
    down = message_to(0, job.method.broadcast(server, KEY))
    return job.method.client_update(down, state, job.federation.batches(0), fold(1))


def counts(mask):
    return {name: int(bits.sum()) for name, bits in mask.items()}


def is_pruning(**options):
    return exchange(small(**options))[2].values["kept"] < 1


def test_pruning_cuts_the_smallest_trained_weights_of_every_layer():
    up, state, metrics = exchange(small(**OPEN, prune_share=0.25))
    free, *_ = exchange(small(target_density=0.999, distance=1.0, prune_share=0.25))
    assert counts(up.mask) == {"fc1.weight": 768 * 3 // 4, "fc2.weight": 120 * 3 // 4}
    for name, bits in up.mask.items():  # `free` is trained alike and then not pruned
        size = free.weights[name].abs()
        assert size[bits].min() >= size[~bits].max()
        assert torch.equal(up.weights[name], torch.where(bits, free.weights[name], 0))
    assert torch.equal(up.weights["fc1.bias"], free.weights["fc1.bias"])
    assert state.weights is up.weights
    assert all(bits.all() for bits in metrics.mask.values())  # it has trained dense


def test_two_halves_of_training_are_one_loop():
    """Momentum goes on; with nothing pruned the round is that of SGD on all mini-batches."""
    job = small(target_density=1.0, optimiser="sgd(momentum=0.9)", clip_norm=None, lr=0.1)
    up, _, metrics = exchange(job)
    weights = {n: v.requires_grad_() for n, v in job.method.init_server(KEY).weights.items()}
    optimiser = torch.optim.SGD(list(weights.values()), lr=0.1, momentum=0.9)
    losses = []
    for batch in job.federation.batches(0).work(fold(1)):
        optimiser.zero_grad()
        loss = job.method.task.loss(weights, batch, fold(0))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    for name, value in weights.items():
        torch.testing.assert_close(up.weights[name], value.detach())
    assert metrics.values["train_loss"] == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize(
    ("last_share", "first_layer"),
    [(1.0, [614, 491, 392, 384, 384]), (0.05, [614, 491, 466, 442, 419, 398, 384, 384])],
)
def test_steps_of_a_fifth_stop_at_the_target(last_share, first_layer):
    """.8 of 768, .8 of 614; at 491 (.64) less than .2 is left: all of it, or .05 at a time."""
    job = small(**OPEN, last_share=last_share, schedule="constant", lr=0.5)
    server, state, found = job.method.init_server(KEY), None, []
    for _ in first_layer:
        up, state, _ = exchange(job, server, state)
        server = job.method.server_update(server, Round([up]), KEY)
        found.append(counts(up.mask)["fc1.weight"])
        assert not any(up.weights[n][~bits].any() for n, bits in up.mask.items())
    assert found == first_layer


def test_the_gate_on_accuracy():
    assert is_pruning(**OPEN)
    assert not is_pruning(**OPEN | {"gate": 1.0})


@pytest.mark.parametrize("gate", [0.5, 1.0])
def test_the_gate_on_the_score_before_pruning(gate, monkeypatch):
    scores = iter([0.3, 0.4])  # pruned, before
    monkeypatch.setattr("fedsieve.optim.local.score", lambda *_: next(scores))
    assert is_pruning(gate=gate, distance=0.0) == (gate < 0.3 / 0.4)


def test_masks_that_have_settled_are_left_alone():
    assert not is_pruning(**OPEN | {"distance": 1.0})
    assert not is_pruning(**OPEN, lr=1e-12)  # both halves choose the same weights


def test_the_first_mask_is_of_the_first_epoch_or_half_of_the_only_one(monkeypatch):
    taken = []
    monkeypatch.setattr(
        "fedsieve.methods.sub_fedavg.islice", lambda it, n: taken.append(n) or islice(it, n)
    )
    for epochs in (1, 2, 3):
        job = small(epochs=epochs, batch_size=10)
        exchange(job)
        examples = job.federation.examples(0)
        steps = math.ceil((examples - round(0.1 * examples)) / 10)
        assert taken.pop() == (steps // 2 if epochs == 1 else steps)


def test_data_is_held_back_only_while_a_client_may_prune():
    job = small(epochs=1)
    examples, server = job.federation.examples(0), job.method.init_server(KEY)
    early, *_ = (exchange(job, server),)
    mask = {n: torch.zeros_like(m) for n, m in early[0].mask.items()}
    late = exchange(job, server._replace(masks={"0": mask}))
    assert early[2].processed == examples - round(0.1 * examples)
    assert late[2].processed == examples
    assert early[0].examples == late[0].examples == examples


def test_means_are_over_those_who_hold_a_weight():
    method = small().method
    bits = [torch.tensor(b) for b in ([True, True, False], [True, False, False])]
    values = [torch.tensor(v) for v in ([2.0, 3.0, 0.0], [6.0, 0.0, 0.0])]
    ups = [
        Up({"w": b}, {"w": v, "b": v[:1]}, client, 1 + 2 * client)
        for client, (b, v) in enumerate(zip(bits, values, strict=True))
    ]
    before = Server({"w": torch.full((3,), 7.0), "b": torch.zeros(1)}, {}, 0)
    after = method.server_update(before, Round(ups), KEY)
    assert after.weights["w"].tolist() == [5, 3, 7]
    assert after.weights["b"].tolist() == [5]
    assert method.model(after, State(1, {}))["w"].tolist() == [5, 0, 0]
    assert method.model(after, State(9, {}))["w"].tolist() == [5, 3, 7]
    assert method.model(after, State(1, {"w": torch.ones(3)}))["w"].tolist() == [1, 1, 1]
    assert method.model(after, ()) is None


def test_every_client_is_sent_its_own_part():
    job = small(**OPEN)
    server = job.method.init_server(KEY)
    up, *_ = exchange(job, server)
    server = job.method.server_update(server, Round([up]), KEY)
    down = [message_to(client, job.method.broadcast(server, KEY)) for client in (0, 1)]
    assert tree.equal(down[0].mask, up.mask)
    assert all(bits.all() for bits in down[1].mask.values())


def test_without_pruning_it_is_fedavg(tmp_path):
    weights = []
    for settings in ({"method": "fedavg"}, {"method": "sub_fedavg", "target_density": 1.0}):
        rounds = rounds_of(small_job(rounds=2, **settings), tmp_path / settings["method"])
        weights.append(list(rounds.play(rounds.start()))[-1].position.server.weights)
    torch.testing.assert_close(*weights)


def test_channels_with_the_smallest_scales_go_with_all_that_belongs_to_them():
    job = small(**HYBRID, scale_l1=0.01)
    graph = job.method.task.graph
    up, _, metrics = exchange(job)
    for block, channels in ((1, 16), (2, 32), (3, 64)):
        kept = up.mask[f"block{block}.norm2.weight"]
        assert kept.sum() == math.floor(0.55 * channels)
        for name in ("weight", "bias", "running_mean", "running_var"):
            assert not up.weights[f"block{block}.norm2.{name}"][~kept].any()
        assert not up.weights[f"block{block}.conv1.weight"][~kept].any()
        assert not up.weights[f"block{block}.conv2.weight"][:, ~kept].any()
        assert up.weights[f"block{block}.conv1.weight"][kept].all()
    assert "norm.weight" not in up.mask  # of a sum, whose other terms it does not scale
    assert up.mask["fc.weight"].sum() == 0.8 * 640
    alive = compaction.alive_channels(graph, masks.nonzero(up.weights, graph.maskable))
    assert alive["block3.conv1"].sum() == 35  # such channels can be cut out
    assert all(bits.shape == up.weights[n].shape for n, bits in metrics.mask.items())


def test_kept_channels_are_those_of_the_largest_scales_and_never_fewer_than_asked():
    job = small(**HYBRID, channel_density=0.5)
    method, mask = job.method, None
    weights = method.init_server(KEY).weights
    name = "block1.norm2.weight"
    weights = weights | {name: torch.arange(16.0) - 20}
    mask = method._whole(weights)
    for kept in (8, 8):  # floor(.55 * 16) = 8, and half of 16
        mask = method._joined(mask | method._candidate("channels", weights, mask))
        assert mask[name].tolist() == [True] * kept + [False] * (16 - kept)


def test_a_linear_layer_loses_the_columns_of_cut_channels():
    task = ModelTask(lambda: read_model("cnn7").build((3, 32, 32), 10), "classes", (3, 32, 32))
    method = SubFedAvg(task=task, structure="hybrid")
    last = method._channels[-1]
    (reader,) = last.readers
    assert reader.kind == "linear"
    mask = method._whole(task.init_params(KEY))
    bits = torch.ones_like(mask[last.scale])
    bits[1] = False
    joined = method._joined(mask | {last.scale: bits})[reader.weight]
    repeat = reader.repeat
    assert not joined[:, repeat : 2 * repeat].any()
    assert joined.sum() == joined.numel() - repeat * reader.shape[0]


def test_the_penalty_draws_scales_of_batchnorm_to_0():
    def size(scale_l1):
        options = HYBRID | {"target_density": 1.0, "clip_norm": None, "schedule": "constant"}
        up, *_ = exchange(small(**options | {"steps": 1, "lr": 0.1}, scale_l1=scale_l1))
        return up.weights["block1.norm2.weight"]

    torch.testing.assert_close(size(0.0) - size(0.5), torch.full((16,), 0.1 * 0.5))


def test_normalisation_is_masked_in_the_preset_code_alone():
    for preset, is_masked in (("code", True), ("paper", False), ("default", False)):
        method = small(preset=preset, model="resnet8").method
        mask = method._whole(method.init_server(KEY).weights)
        assert ("norm.weight" in mask) == is_masked
        assert set(method.task.graph.maskable) <= set(mask)
        assert not any(name.endswith(("bias", "mean", "var")) for name in mask)


def test_hybrid_needs_batchnorm():
    with pytest.raises(ConfigError, match="structure=unstructured"):
        small(structure="hybrid")


@pytest.mark.parametrize(
    "options",
    [
        {"target_density": 0.0}, {"prune_share": 1.0}, {"last_share": 0.0}, {"distance": -0.1},
        {"gate": 1.1}, {"held_back": 0.0}, {"channel_share": 0.0}, {"channel_density": 0.0},
        {"channel_distance": 2.0}, {"scale_l1": -1.0}, {"lr": 0.0}, {"clip_norm": 0.0},
    ],
)  # fmt: skip
def test_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        small(**options)
