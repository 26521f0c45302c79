"""Channels called dead change nothing; only those can be cut."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from fedsieve.models.task import ModelTask
from fedsieve.models.trace import trace
from fedsieve.models.zoo.resnet import Resnet8
from fedsieve.sparsity.compaction import (
    alive_channels,
    compact,
    restore,
    smallest,
    written_channels,
)


def mlp(*widths, bias=False):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def full(graph):
    return {x.weight: torch.ones(x.shape, dtype=torch.bool) for x in graph.layers}


def test_a_mask_of_ones_and_an_empty_one_keep_all():
    graph = trace(mlp(3, 4, 2), (3,))
    for mask in (full(graph), {}):
        assert all(a.all() for a in alive_channels(graph, mask).values())


def test_a_channel_nobody_reads_is_dead():
    graph = trace(mlp(3, 4, 2, bias=True), (3,))
    mask = full(graph)
    mask["2.weight"][:, 1] = False
    assert alive_channels(graph, mask)["0"].tolist() == [True, False, True, True]


def test_a_channel_nobody_writes_is_dead_unless_it_has_a_bias():
    for bias in (False, True):
        graph = trace(mlp(3, 4, 2, bias=bias), (3,))
        mask = full(graph)
        mask["0.weight"][1] = False
        assert alive_channels(graph, mask)["0"].tolist() == [True, bias, True, True]
    mask["0.bias"] = torch.tensor([True, False, False, True])
    assert alive_channels(graph, mask)["0"].tolist() == [True, False, True, True]


def test_batch_norm_keeps_a_channel_that_nobody_writes():
    model = mlp(3, 4, 2)
    model.insert(1, nn.BatchNorm1d(4))
    graph = trace(model, (3,))
    mask = full(graph)
    mask["0.weight"][1] = False
    assert alive_channels(graph, mask)["0"].all()


def test_death_spreads_both_ways_to_a_fixpoint():
    # Unit 0 of the first hidden layer feeds unit 0 of the second alone, and so on up to the last,
    # whose unit 0 nobody reads; unit 1 of the last layers lives on a dead unit 1 below alone.
    graph = trace(mlp(3, 2, 2, 2, 2), (3,))
    mask = full(graph)
    mask["2.weight"] = mask["4.weight"] = torch.eye(2, dtype=torch.bool)
    mask["6.weight"][:, 0] = False
    alive = alive_channels(graph, mask)
    assert [alive[n].tolist() for n in ("0", "2", "4")] == [[False, True]] * 3
    mask["0.weight"][1] = False
    alive = alive_channels(graph, mask)
    assert not any(alive[n].any() for n in ("0", "2", "4"))
    assert alive["6"].all()


def test_columns_of_a_flattened_channel_count_together():
    model = nn.Sequential(nn.Conv2d(1, 3, 2, bias=False), nn.Flatten(), nn.Linear(3 * 4, 2))
    graph = trace(model, (1, 3, 3))
    mask = full(graph)
    mask["2.weight"][:, 4:8] = False
    mask["2.weight"][:, 8:11] = False
    assert alive_channels(graph, mask)["0"].tolist() == [True, False, True]


class Mixed(nn.Module):
    """A residual sum, a depthwise convolution and a flatten."""

    def __init__(self, *, bias):
        super().__init__()
        self.a = nn.Conv2d(1, 6, 3, padding=1, bias=bias)
        self.b = nn.Conv2d(6, 6, 3, padding=1, bias=bias)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=bias)
        self.c = nn.Conv2d(6, 5, 3, bias=bias)
        self.fc = nn.Linear(5 * 4, 3)

    def forward(self, x):
        x = torch.relu(self.a(x))
        x = x + torch.relu(self.b(x))
        return self.fc(torch.relu(self.c(torch.relu(self.depthwise(x)))).flatten(1))


def build(kind):
    torch.manual_seed(0)
    models = {
        "mlp": (mlp(8, 10, 9, 8, 3), (8,)),
        "biases": (mlp(8, 10, 9, 8, 3, bias=True), (8,)),
        "mixed": (Mixed(bias=False), (1, 4, 4)),
        "mixed with biases": (Mixed(bias=True), (1, 4, 4)),
        "resnet8": (Resnet8().build((1, 8, 8), 3), (1, 8, 8)),
    }
    model, shape = models[kind]
    for name, tensor in model.named_buffers():
        if "running_mean" in name:
            tensor.normal_()
    for p in model.parameters():
        p.data.normal_()
    return model.eval(), shape


KINDS = ["mlp", "biases", "mixed", "mixed with biases", "resnet8"]


def masked(model, graph, seed):
    """A random mask, with the weights outside of it set to 0."""
    torch.manual_seed(seed)
    mask = {}
    for layer in graph.layers:
        rows, columns = torch.rand(2, max(layer.shape[:2])) < 0.6
        keep = rows[: layer.shape[0], None] & columns[: layer.shape[1]]
        keep = keep.view(*keep.shape, *[1] * (len(layer.shape) - 2))
        mask[layer.weight] = keep & (torch.rand(layer.shape) < 0.5)
        model.get_parameter(layer.weight).data *= mask[layer.weight]
    return mask


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_outputs_do_not_depend_on_dead_channels(kind, seed):
    model, shape = build(kind)
    graph = trace(model, shape)
    mask = masked(model, graph, seed)
    x = torch.randn(5, *shape)
    expected = model(x)
    alive = alive_channels(graph, mask)
    for layer in graph.layers:  # poison all that is read from dead channels, and drop their biases
        weight = model.get_parameter(layer.weight).data
        weight[~alive[layer.target]] = 0
        if layer.kind != "depthwise":
            dead = ~alive[layer.source].repeat_interleave(layer.repeat)
            weight[:, dead] = torch.randn_like(weight[:, dead])
            weight[~alive[layer.target]] = 0
        if layer.bias is not None:
            model.get_parameter(layer.bias).data[~alive[layer.target]] = 0
    for norm in graph.norms:
        for name in norm.tensors[:2]:
            model.get_parameter(name).data[~alive[norm.space]] = 0
        model.get_buffer(norm.tensors[2])[~alive[norm.space]] = 0
    assert any((~a).any() for a in alive.values())
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["mlp", "biases", "mixed", "resnet8"])
@pytest.mark.parametrize("seed", range(4))
def test_a_compact_model_is_smaller_and_gives_equal_outputs(kind, seed):
    model, shape = build(kind)
    task = ModelTask(model, "classes", shape)
    mask = masked(model, task.graph, seed)
    params = {n: t.detach().clone() for n, t in model.state_dict().items() if t.is_floating_point()}
    alive = alive_channels(task.graph, mask)
    small = compact(task.graph, params, alive)
    assert sum(t.numel() for t in small.values()) < sum(t.numel() for t in params.values())
    x = torch.randn(5, *shape)
    expected = task.predict(params, x)
    scale = expected.abs().max().clamp(min=1)
    torch.testing.assert_close(task.predict(small, x) / scale, expected / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_restoring_a_compact_model_gives_the_whole_one_back(kind):
    model, shape = build(kind)
    graph = trace(model, shape)
    params = {n: t.detach().clone() for n, t in model.state_dict().items() if t.is_floating_point()}
    alive = alive_channels(graph, masked(model, graph, seed=0))
    small = compact(graph, params, alive)
    back = restore(graph, small, alive, params)
    assert all(torch.equal(back[n], v) for n, v in params.items())
    doubled = restore(graph, {n: 2 * v for n, v in small.items()}, alive, params)
    changed = sum(int((doubled[n] != v).sum()) for n, v in params.items())
    assert changed == sum(int(v.count_nonzero()) for v in small.values())


def test_a_space_without_a_live_channel_keeps_one():
    model = mlp(3, 4, 2)
    task = ModelTask(model, "classes", (3,))
    params = {n: torch.zeros_like(t) for n, t in model.state_dict().items()}
    mask = {n: t != 0 for n, t in params.items()}
    small = compact(task.graph, params, alive_channels(task.graph, mask))
    assert small["0.weight"].shape == (1, 3)
    assert not task.predict(small, torch.ones(2, 3)).any()


def constant_net(*, padding, norm=False):
    """Two convolutions and two linear layers, in which some filters and units have only biases."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 5, 3, padding=padding)]
    layers += [nn.BatchNorm2d(5)] if norm else []
    layers += [nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3, padding=padding), nn.ReLU()]
    side = (10 + 2 * padding - 2) // 2 + 2 * padding - 2
    layers += [nn.Flatten(), nn.Linear(6 * side * side, 7), nn.ReLU(), nn.Linear(7, 3)]
    model = nn.Sequential(*layers)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(torch.randn(tensor.shape) * 0.5)
    if norm:
        model[1].running_var.data.abs_().add_(0.1)
    return model


def cut_and_compare(model):
    task = ModelTask(model, "classes", (1, 10, 10))
    params = {n: t.detach().clone() for n, t in model.state_dict().items() if t.is_floating_point()}
    small = smallest(task, params)
    x = torch.randn(4, 1, 10, 10)
    torch.testing.assert_close(
        task.predict(small, x), task.predict(params, x), rtol=1e-5, atol=1e-5
    )
    return task.graph, small


@pytest.mark.parametrize("norm", [False, True])
def test_a_filter_without_weights_is_folded_into_the_biases_behind_it(norm):
    model = constant_net(padding=0, norm=norm)
    first, second = (m for m in model if isinstance(m, nn.Conv2d))
    first.weight.data[[1, 3]] = 0
    second.weight.data[2] = 0
    _, small = cut_and_compare(model)
    shapes = {tuple(t.shape) for t in small.values()}
    assert (3, 1, 3, 3) in shapes
    assert (5, 3, 3, 3) in shapes


def test_next_to_a_border_of_zeros_a_constant_channel_stays_unless_it_is_zero():
    model = constant_net(padding=1)
    first = model[0]
    first.weight.data[[1, 3]] = 0
    first.bias.data[1], first.bias.data[3] = 0.7, -0.7  # the second is 0 behind the ReLU
    graph, small = cut_and_compare(model)
    assert graph.layers[1].is_padded
    assert small["0.weight"].shape[0] == 4


def test_units_that_read_constants_alone_become_constants_themselves():
    model = constant_net(padding=0)
    model[0].weight.data[1] = 0
    model[3].weight.data[4] = 0
    model[3].weight.data[4, 1] = 1.0  # reads the constant filter and nothing else
    _, small = cut_and_compare(model)
    assert small["0.weight"].shape[0] == 4
    assert small["3.weight"].shape[:2] == (5, 4)


def test_without_a_bias_to_take_it_a_constant_stays():
    model = constant_net(padding=0)
    model[0].weight.data[1] = 0
    model[0].bias.data[1] = 1.0
    model[3].register_parameter("bias", None)
    _, small = cut_and_compare(model)
    assert small["0.weight"].shape[0] == 5


def test_folding_changes_no_input():
    model = constant_net(padding=0)
    model[0].weight.data[1] = 0
    task = ModelTask(model, "classes", (1, 10, 10))
    params = {n: t.detach().clone() for n, t in model.state_dict().items()}
    before = {n: t.clone() for n, t in params.items()}
    smallest(task, params)
    assert all(torch.equal(before[n], t) for n, t in params.items())


def test_values_of_rows_are_cut_like_their_weight_and_whole_tensors_are_not_copied():
    graph = trace(mlp(3, 4, 2), (3,))
    mask = full(graph)
    mask["0.weight"][1] = False
    alive = alive_channels(graph, mask)
    whole = {"0.weight": torch.arange(4.0), "2.weight": torch.ones(2, 1), "other": torch.ones(4)}
    small = compact(graph, whole, alive)
    assert small["0.weight"].tolist() == [0, 2, 3]
    assert small["2.weight"] is whole["2.weight"]
    assert small["other"] is whole["other"]


def test_written_channels_follow_rows_through_layers_and_stop_at_biases():
    graph = trace(mlp(3, 4, 5, 2), (3,))
    rows = {x.weight: torch.ones(x.shape[0], 1, dtype=torch.bool) for x in graph.layers}
    first, second, out = (x.target for x in graph.layers)
    rows["0.weight"][1] = rows["2.weight"][3] = rows["4.weight"][0] = False
    found = written_channels(graph, rows)
    assert found[first].tolist() == [True, False, True, True]
    assert found[second].tolist() == [True, True, True, False, True]
    assert found[out].all()  # the outputs are the model's
    rows["0.weight"][:] = False  # a layer that reads nothing but zeros writes none
    assert not written_channels(graph, rows)[second].any()
    biased = trace(mlp(3, 4, 5, 2, bias=True), (3,))
    assert written_channels(biased, rows)[first].all()
