"""Architectures have the sizes the papers' tables imply."""

import math

import pytest
import torch
from torch import nn

from fedsieve.core.errors import ConfigError, ModelError
from fedsieve.core.options import name_of, spell
from fedsieve.models.trace import trace
from fedsieve.models.zoo.lstm import Lstm, StackedLstm
from fedsieve.models.zoo.registry import MODELS, read_model

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)


def build(text, shape, outputs):
    return read_model(text).build(shape, outputs)


def count(tensors):
    return sum(t.numel() for t in tensors)


def weights(module):
    """All tensors of two and more axes: neither biases nor normalisation."""
    return [p for p in module.parameters() if p.ndim > 1]


def affine(module):
    return [p for m in module.modules() if "Norm" in type(m).__name__ for p in m.parameters()]


@pytest.mark.parametrize(
    ("text", "shape", "outputs", "parameters"),
    [
        ("linear", (1000,), 1, 1000),
        ("linear", MNIST, 62, 784 * 62),
        ("linear(bias=True)", MNIST, 10, 784 * 10 + 10),
        ("mlp", MNIST, 10, 784 * 100 + 100 + 100 * 10 + 10),
        ("mlp(hidden=[100, 50])", (20,), 3, 20 * 100 + 100 + 100 * 50 + 50 + 50 * 3 + 3),
        ("lenet5_caffe", MNIST, 10, 430_500),
        ("lenet5_wide", CIFAR, 10, 878_538),
        ("lenet5_wide", MNIST, 62, 608_702),
        ("lenet5", MNIST, 10, 44_426),
        ("conv_small", DIGITS, 10, (144 + 16) + (4608 + 32) + (128 * 100 + 100) + (1000 + 10)),
        (
            "cifarnet",
            MNIST,
            10,
            (25 * 64 + 64)
            + (64 * 25 * 64 + 64)
            + (7 * 7 * 64 * 384 + 384)
            + (384 * 192 + 192)
            + (192 * 10 + 10),
        ),
        ("resnet20_gn", CIFAR, 100, 275_572),
    ],
)
def test_parameters_are_those_of_the_stated_shape(text, shape, outputs, parameters):
    assert count(build(text, shape, outputs).parameters()) == parameters


def test_the_digits_net_has_18600_weights_to_the_nearest_hundred():
    assert round(count(weights(build("conv_small", DIGITS, 10))), -2) == 18_600


def test_cifarnet_has_1_38_million_parameters():
    assert round(count(build("cifarnet", MNIST, 10).parameters()) / 1e6, 2) == 1.38


def test_cnn7_is_weights_affine_and_statistics():
    model = build("cnn7", CIFAR, 10)
    statistics = [b for b in model.buffers() if b.is_floating_point()]
    assert count(weights(model)) == 804_800
    assert count(affine(model)) == count(statistics) == 1_280
    assert count(model.parameters()) == 804_800 + 1_280


def test_resnet8_is_weights_a_bias_and_affine():
    model = build("resnet8", CIFAR, 100)
    assert count(weights(model)) == 83_120
    assert count(affine(model)) == 480
    assert count(model.parameters()) == 83_120 + 480 + 100


@pytest.mark.parametrize(("width", "conv_weights"), [(64, 11_159_232), (32, 2_790_240)])
def test_resnet18_has_the_papers_convolution_weights(width, conv_weights):
    model = build(f"resnet18(width={width})", CIFAR, 100)
    assert count(p for p in model.parameters() if p.ndim == 4) == conv_weights


def test_vgg_like_is_the_convolutions_of_vgg16_and_a_classifier():
    layers = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), *[(256, 256)] * 2, (256, 512)]
    layers += [(512, 512)] * 5
    model = build("vgg_like", CIFAR, 10)
    assert count(weights(model)) == sum(9 * a * b for a, b in layers) + 512 * 10


def test_the_lstm_has_210944_weights_beside_its_head():
    model = build("lstm", MNIST, 10)
    assert count(model.lstm.parameters()) == 210_944
    assert count(model.parameters()) == 210_944 + 128 * 10 + 10


@pytest.mark.parametrize(
    ("text", "shape", "outputs", "unmasked", "thresholds"),
    [
        ("lenet5_caffe", MNIST, 10, 0, 580),
        ("cnn7", CIFAR, 10, 0, 650),
        ("resnet8", CIFAR, 100, 0, 436),
        ("lstm", MNIST, 10, 10, 2048),
        ("resnet18", CIFAR, 100, 100, 4800),
        ("resnet18(width=32)", CIFAR, 100, 100, 2400),
    ],
)
def test_rows_of_maskable_weights_are_spafls_thresholds(text, shape, outputs, unmasked, thresholds):
    graph = trace(build(text, shape, outputs), shape)
    rows = sum(x.shape[0] for x in graph.layers if x.weight in graph.maskable)
    assert rows - unmasked == thresholds  # SpaFL leaves the last layer of two models unmasked


@pytest.mark.parametrize(
    ("text", "shape", "outputs", "macs"),
    [
        ("lenet5_caffe", MNIST, 10, 2_293_000),
        ("cnn7", CIFAR, 10, 82_489_600),
        ("resnet8", CIFAR, 100, 12_507_392),
        ("resnet18", CIFAR, 100, 555_468_800),
        ("lstm", MNIST, 10, 28 * 210_944 + 128 * 10),
    ],
)
def test_macs_are_those_of_the_papers_tables(text, shape, outputs, macs):
    assert trace(build(text, shape, outputs), shape).macs == macs


def counted_macs(model, shape):
    """Multiply-accumulates of one example, counted by hooks from what layers were given."""
    total = 0

    def count_layer(layer, inputs, output):
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            one_output = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
            total += output[0].numel() * one_output
        elif isinstance(layer, nn.Linear):
            total += output[0].numel() * layer.in_features
        elif isinstance(layer, StackedLstm):
            total += inputs[0].shape[1] * count(layer.parameters())

    for layer in model.modules():
        layer.register_forward_hook(count_layer)
    model.eval()(torch.zeros(1, *shape))
    return total


SHAPES = {"conv_small": DIGITS, "lenet5": MNIST, "lstm": MNIST, "mlp": (1, 5, 7)}


@pytest.mark.parametrize("text", [name_of(m) for m in MODELS])
def test_macs_of_the_graph_equal_a_count_by_hooks(text):
    shape = SHAPES.get(text, CIFAR)
    model = build(text, shape, 10)
    assert trace(model, shape).macs == counted_macs(model, shape)


@pytest.mark.parametrize("text", [name_of(m) for m in MODELS])
def test_every_model_trains_on_channels_last_input_as_on_contiguous(text):
    shape = SHAPES.get(text, CIFAR)
    torch.manual_seed(0)
    model = build(text, shape, 7).double().eval()
    x = torch.randn(3, *shape, dtype=torch.double)
    expected = model(x)
    assert expected.shape == (3, 7)
    model.to(memory_format=torch.channels_last)
    y = model(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("text", [name_of(m) for m in MODELS])
def test_a_models_spelling_reads_back(text):
    model = read_model(text)
    assert read_model(spell(model)) == model


@pytest.mark.parametrize(
    ("text", "smallest"),
    [
        ("lenet5", 16),
        ("lenet5_caffe", 16),
        ("lenet5_wide", 16),
        ("conv_small", 4),
        ("cifarnet", 4),
        ("cnn7", 28),
        ("resnet8", 8),
        ("resnet18", 8),
        ("resnet20_gn", 4),
        ("vgg_like(width=8)", 32),
    ],
)
def test_an_image_model_works_down_to_the_size_it_states(text, smallest):
    model = build(text, (2, smallest, smallest), 3)
    assert model.eval()(torch.zeros(1, 2, smallest, smallest)).shape == (1, 3)
    with pytest.raises(ModelError, match=f"at least {smallest} x {smallest}"):
        build(text, (2, smallest - 1, smallest), 3)


def test_an_image_model_says_that_it_needs_images():
    with pytest.raises(ModelError, match=r"lenet5_caffe needs images.*\(20,\).*mlp or linear"):
        build("lenet5_caffe", (20,), 3)


def test_an_unknown_model_is_answered_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'resnet18'"):
        read_model("resnet16")


@pytest.mark.parametrize(
    "text", ["mlp(hidden=[0])", "resnet18(width=0)", "lstm(hidden=0)", "lenet5_wide(fc_dropout=2)"]
)
def test_a_width_or_rate_out_of_range_is_refused(text):
    with pytest.raises(ConfigError, match="must be"):
        read_model(text)


def test_the_lstm_equals_torchs_own_without_biases():
    torch.manual_seed(0)
    ours, theirs = StackedLstm(6, 5, 2), nn.LSTM(6, 5, 2, bias=False, batch_first=True)
    for k in (0, 1):
        for part in ("ih", "hh"):
            weight = ours.get_parameter(f"weight_{part}_{k}").detach()
            theirs.get_parameter(f"weight_{part}_l{k}").data.copy_(weight)
    x = torch.randn(4, 9, 6)
    torch.testing.assert_close(ours(x), theirs(x)[0][:, -1], rtol=0, atol=0)


def test_the_lstm_uses_tensors_put_in_the_place_of_its_weights():
    lstm = StackedLstm(3, 2, 1)
    x = torch.randn(1, 4, 3)
    lstm._parameters["weight_ih_0"] = torch.zeros(8, 3)
    assert torch.equal(lstm(x), torch.zeros(1, 2))  # no input, no state


def test_the_lstm_reads_an_image_row_by_row():
    model = Lstm(hidden=4).build((2, 5, 3), 7)
    x = torch.randn(1, 2, 5, 3)
    steps = torch.stack([torch.cat([x[0, 0, row], x[0, 1, row]]) for row in range(5)])
    torch.testing.assert_close(model(x), model.fc(model.lstm(steps[None])))


def test_the_lstm_reads_tokens_and_feature_vectors():
    tokens = Lstm(hidden=4, embedding=3).build((11,), 90)
    assert tokens.embedding.weight.shape == (90, 3)
    assert tokens(torch.zeros(2, 11, dtype=torch.long)).shape == (2, 90)
    assert Lstm(hidden=4).build((11, 6), 5)(torch.zeros(2, 11, 6)).shape == (2, 5)
    with pytest.raises(ModelError, match="lstm needs inputs"):
        Lstm().build((1, 2, 3, 4), 5)
