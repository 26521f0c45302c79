"""The layer graph says which channels live together and which may be cut."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsieve.core.errors import ModelError
from fedsieve.models.trace import trace
from fedsieve.models.zoo.lstm import Lstm
from fedsieve.models.zoo.resnet import Resnet8, Resnet20Gn

IMAGE = (3, 8, 8)


class Around(nn.Module):
    """conv1 -> `middle` -> head, for a middle that keeps or changes channels."""

    def __init__(self, middle, channels=4, after=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1)
        self.middle = middle
        self.head = nn.Linear(after, 5)

    def forward(self, x):
        return self.head(self.middle(self.conv1(x)).mean((2, 3)))


class Call(nn.Module):
    """A function as a module, traced through."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def layer(graph, name):
    return next(x for x in graph.layers if x.name == name)


def is_cuttable(graph, name):
    return graph.space[layer(graph, name).target].is_cuttable


def test_a_chain_reads_what_the_layer_before_writes():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    graph = trace(model, IMAGE)
    conv, fc = graph.layers
    assert (conv.kind, conv.weight, conv.bias, conv.shape) == (
        "conv",
        "0.weight",
        "0.bias",
        (4, 3, 3, 3),
    )
    assert (fc.source, fc.repeat) == (conv.target, 36)
    assert (conv.macs, fc.macs) == (4 * 27 * 36, 4 * 36 * 5)
    assert [s.is_cuttable for s in graph.spaces] == [False, True, False]
    assert graph.maskable == ("0.weight", "3.weight")


def test_an_addition_makes_one_space_of_two():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(i, 4, 3, padding=1) for i in (3, 4, 4))
            self.head = nn.Linear(4, 5)

        def forward(self, x):
            x = torch.relu(self.a(x))
            x = x + self.c(functional.relu(self.b(x)))
            return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))

    graph = trace(Residual(), IMAGE)
    assert layer(graph, "a").target == layer(graph, "c").target == layer(graph, "head").source
    assert layer(graph, "b").target != layer(graph, "a").target
    assert is_cuttable(graph, "a")
    assert is_cuttable(graph, "b")


def test_a_depthwise_convolution_stays_in_its_space():
    graph = trace(Around(nn.Conv2d(4, 4, 3, groups=4)), IMAGE)
    depthwise = layer(graph, "middle")
    assert depthwise.kind == "depthwise"
    assert depthwise.source == depthwise.target == "conv1"
    assert depthwise.macs == 4 * 9 * 6 * 6
    assert layer(graph, "head").source == "conv1"
    assert is_cuttable(graph, "conv1")


def test_other_groups_cannot_be_cut():
    graph = trace(Around(nn.Conv2d(4, 4, 1, groups=2)), IMAGE)
    assert not is_cuttable(graph, "conv1")
    assert not is_cuttable(graph, "middle")
    assert layer(graph, "middle").macs == 4 * 2 * 8 * 8


@pytest.mark.parametrize(
    "keeps",
    [
        nn.ReLU(),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.BatchNorm2d(4),
        Call(functional.leaky_relu),
        Call(lambda x: functional.max_pool2d(x, 2)),
        Call(lambda x: functional.dropout(x, 0.1)),
        Call(lambda x: functional.pad(x, (1, 1, 1, 1))),
        Call(lambda x: 2 * x / 3),
        Call(lambda x: x.relu_().contiguous()),
        Call(lambda x: x.mean(-1, keepdim=True)),
    ],
)
def test_operations_that_keep_channels_and_zeros_leave_them_cuttable(keeps):
    graph = trace(Around(keeps), IMAGE)
    assert layer(graph, "head").source == "conv1"
    assert is_cuttable(graph, "conv1")


@pytest.mark.parametrize(
    ("mixes", "after"),
    [
        (nn.GroupNorm(2, 4), 4),
        (nn.LayerNorm((4, 8, 8)), 4),
        (nn.Sigmoid(), 4),  # sigmoid(0) is not 0
        (nn.Softmax(1), 4),
        (Call(lambda x: x + 1), 4),
        (Call(lambda x: functional.pad(x, (1, 1), value=1.0)), 4),
        (Call(lambda x: 1 / x), 4),
        (Call(lambda x: torch.cat([x, x], 1)), 8),
        (Call(lambda x: functional.pad(x, (0, 0, 0, 0, 1, 1))), 6),
        (Call(lambda x: x.transpose(1, 2)), 8),
        (Call(lambda x: x.reshape(x.shape[0], 2, 16, 8)), 2),
        (Call(lambda x: x.chunk(2, 1)[0]), 2),
        (Call(lambda x: x[:, :2]), 2),
    ],
)
def test_operations_that_mix_channels_or_move_zeros_freeze_them(mixes, after):
    graph = trace(Around(mixes, after=after), IMAGE)
    assert not is_cuttable(graph, "conv1")


def test_a_norm_is_listed_with_its_tensors_and_space():
    graph = trace(Around(nn.BatchNorm2d(4)), IMAGE)
    (norm,) = graph.norms
    parts = ("weight", "bias", "running_mean", "running_var")
    assert norm.tensors == tuple(f"middle.{p}" for p in parts)
    assert (norm.space, norm.mixes) == ("conv1", False)
    (norm,) = trace(Around(nn.GroupNorm(2, 4)), IMAGE).norms
    assert norm.mixes


def test_a_norm_after_flatten_has_more_entries_than_channels_and_freezes_them():
    for kernel, features in ((8, 4), (7, 4 * 2 * 2)):
        head = (nn.Flatten(), nn.BatchNorm1d(features), nn.Linear(features, 2))
        graph = trace(nn.Sequential(nn.Conv2d(3, 4, kernel), *head), IMAGE)
        assert is_cuttable(graph, "0") == (features == 4)


def test_pre_activation_shortcuts_read_the_stream_and_open_a_new_one():
    graph = trace(Resnet8().build((3, 32, 32), 10), (3, 32, 32))
    stream = layer(graph, "conv").target
    assert layer(graph, "block1.conv2").target == stream
    assert layer(graph, "block2.shortcut").source == stream
    assert layer(graph, "block2.conv2").target == layer(graph, "block2.shortcut").target
    assert graph.space[stream].is_cuttable


def test_group_norm_leaves_nothing_to_cut():
    graph = trace(Resnet20Gn().build((3, 32, 32), 10), (3, 32, 32))
    assert not any(s.is_cuttable for s in graph.spaces)


def test_linear_layers_on_sequences_count_every_step():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten())
    graph = trace(model, (10, 6))
    assert [x.macs for x in graph.layers] == [10 * 24, 10 * 8]
    assert graph.layers[1].source == "0"


def test_one_dimensional_convolutions_are_traced():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten())
    graph = trace(model.append(nn.Linear(4 * 4, 3)), (2, 10))
    assert graph.layers[0].macs == 4 * 2 * 3 * 8
    assert (graph.layers[1].source, graph.layers[1].repeat) == ("0", 4)


def test_tokens_go_through_an_embedding_into_lstm_gates():
    graph = trace(Lstm(hidden=4, embedding=3).build((7,), 20), (7,), is_tokens=True)
    kinds = [x.kind for x in graph.layers]
    assert kinds == ["embedding", "lstm", "lstm", "lstm", "lstm", "linear"]
    assert "embedding.weight" not in graph.maskable
    assert graph.macs == 7 * (16 * 3 + 3 * 16 * 4) + 4 * 20
    assert not any(s.is_cuttable for s in graph.spaces)
    assert all(x.shape[0] == graph.space[x.target].size for x in graph.layers[1:])


def test_tracing_leaves_the_module_as_it_was():
    model = Around(nn.BatchNorm2d(4))
    model.middle.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trace(model, IMAGE)
    assert model.training
    assert not model.middle.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_forward_that_branches_on_values_is_named():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelError, match=r"layer 'middle' \(Branching\) cannot be traced"):
        trace(Around(Branching()), IMAGE)
    with pytest.raises(ModelError, match=r"layer 'middle\.0' \(Branching\) cannot be traced"):
        trace(Around(nn.Sequential(Branching())), IMAGE)
    with pytest.raises(ModelError, match=r"the model \(Branching\) cannot be traced"):
        trace(Branching(), IMAGE)


def test_a_layer_without_a_rule_is_named_with_those_that_have_one():
    message = r"layer 'middle' \(PReLU\) has no rule.*Supported are Conv1d, Conv2d, Linear"
    with pytest.raises(ModelError, match=message):
        trace(Around(nn.PReLU()), IMAGE)


def test_a_subclass_or_a_parametrised_layer_is_refused_for_it_may_compute_something_else():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            return functional.conv2d(x, self.weight - self.weight.mean())

    with pytest.raises(ModelError, match=r"layer 'middle' \(Standardised\) uses .*'weight'"):
        trace(Around(Standardised(4, 4, 1)), IMAGE)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))
    with pytest.raises(ModelError, match=r"layer 'middle'.*has no rule"):
        trace(Around(normed), IMAGE)


def test_a_bare_layer_is_answered_with_the_way_to_write_it():
    with pytest.raises(ModelError, match=r"nn\.Sequential\(layer\)"):
        trace(nn.Linear(4, 2), (4,))


def test_tied_weights_are_refused_by_both_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.raises(ModelError, match=r"0\.weight and 2\.weight are one shared tensor"):
        trace(model, (4,))


def test_a_layer_applied_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x))

    with pytest.raises(ModelError, match=r"layer 'fc' \(Linear\) is applied twice"):
        trace(Twice(), (4,))


def test_an_activation_may_be_applied_twice():
    relu = nn.ReLU()
    graph = trace(
        nn.Sequential(nn.Linear(4, 3), relu, nn.Linear(3, 3), relu, nn.Linear(3, 2)), (4,)
    )
    assert len(graph.layers) == 3


def test_unused_parameters_are_named():
    model = Around(nn.ReLU())
    model.spare = nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"never uses spare\.weight, spare\.bias"):
        trace(model, IMAGE)


def test_an_input_that_does_not_fit_is_told_by_the_layer_that_met_it():
    with pytest.raises(ModelError, match=r"layer 'conv1' \(Conv2d\) failed on an example"):
        trace(Around(nn.ReLU()), (1, 8, 8))


def test_an_operation_that_fails_is_named():
    with pytest.raises(ModelError, match="operation 'reshape' of the model failed on an example"):
        trace(Around(Call(lambda x: x.reshape(7, 7))), IMAGE)


def test_a_buffer_may_be_used_anywhere_and_freezes_what_it_meets():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(2, 4, 8, 8))

        def forward(self, x):
            return x + self.shift

    assert not is_cuttable(trace(Around(Shifted()), IMAGE), "conv1")


def test_one_input_and_one_output_are_asked_for():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    with pytest.raises(ModelError, match=r"takes 2 inputs \(x, y\)"):
        trace(Two(), (4,))
    with pytest.raises(ModelError, match="returns a tuple"):
        trace(Call(lambda x: (x, x)), (4,))


def test_a_layer_with_weights_and_several_outputs_is_named():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.LSTM(4, 8, batch_first=True)
            self.fc = nn.Linear(8, 2)

        def forward(self, x):
            return self.fc(self.memory(x)[0][:, -1])

    with pytest.raises(ModelError, match=r"memory.*StackedLstm"):
        trace(Recurrent(), (5, 4))
