"""MACs of training: three forward passes' worth of multiply-accumulates per example."""

import pytest
import torch
from torch import nn

from fedsieve.metrics.macs import Macs, density, training_macs
from fedsieve.models.trace import trace
from fedsieve.models.zoo.lenet import Lenet5Caffe
from fedsieve.models.zoo.lstm import Lstm


def two_layers(*, bias=False):
    """5 -> 4 -> 3."""
    model = nn.Sequential(nn.Linear(5, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3, bias=bias))
    return trace(model, (5,))


@pytest.fixture(scope="module")
def lenet():
    return trace(Lenet5Caffe().build((1, 28, 28), 10), (1, 28, 28))


def full(graph):
    return {x.weight: torch.ones(x.shape, dtype=torch.bool) for x in graph.layers}


def test_without_a_mask_all_counts_are_dense():
    dense = 3 * 7 * (5 * 4 + 4 * 3)
    assert training_macs(two_layers(), 7, None) == Macs(dense, dense, dense)


def test_a_mask_of_ones_and_an_empty_one_cost_what_no_mask_costs(lenet):
    assert (
        training_macs(lenet, 7, full(lenet))
        == training_macs(lenet, 7, {})
        == training_macs(lenet, 7, None)
    )


def test_scattered_zeros_are_saved_in_the_ideal_alone():
    graph = two_layers()
    mask = full(graph)
    mask["0.weight"][0, 0] = mask["0.weight"][1, 2] = mask["2.weight"][2, 3] = False
    assert training_macs(graph, 1, mask) == Macs(3 * 32, 3 * (32 - 3), 3 * 32)


def test_a_dead_neuron_takes_its_row_and_its_column_along():
    graph = two_layers()
    mask = full(graph)
    mask["0.weight"][1] = False
    assert training_macs(graph, 1, mask) == Macs(3 * 32, 3 * (32 - 5), 3 * (3 * 5 + 3 * 3))


def test_gradients_outside_the_mask_cost_a_dense_third_pass():
    graph = two_layers()
    mask = full(graph)
    mask["0.weight"][1] = False
    found = training_macs(graph, 2, mask, dense_gradients=1)  # 2 + 2 + 1 sparse passes and a dense
    assert found == Macs(6 * 32, 5 * (32 - 5) + 32, 5 * (3 * 5 + 3 * 3) + 32)


def test_a_bias_keeps_the_neuron_whose_inputs_are_masked():
    graph = two_layers(bias=True)
    mask = full(graph)
    mask["0.weight"][1] = False
    assert training_macs(graph, 1, mask).realisable == 3 * 32
    mask["2.weight"][:, 1] = False  # now nobody reads it either
    assert training_macs(graph, 1, mask).realisable == 3 * (3 * 5 + 3 * 3)


def test_lenet_without_half_of_its_filters_is_counted_layer_by_layer(lenet):
    mask = full(lenet)
    mask["conv1.weight"][10:] = False
    mask["fc2.weight"][:, 400:] = False
    kept = {  # macs per weight: the positions of the output
        "conv1": 10 * 25 * 24**2,
        "conv2": 50 * 10 * 25 * 8**2,
        "fc1": 400 * 50 * 4**2,
        "fc2": 10 * 400,
    }
    saved = 10 * 25 * 24**2 + 10 * 100
    expected = Macs(3 * 2_293_000, 3 * (2_293_000 - saved), 3 * sum(kept.values()))
    assert training_macs(lenet, 1, mask) == expected


def test_a_masked_map_in_the_flattened_input_kills_its_filter(lenet):
    mask = full(lenet)
    mask["fc1.weight"][:, 16 * 3 : 16 * 4] = False  # the 4 x 4 map of filter 3
    kept = 288_000 + 49 * 20 * 25 * 64 + 500 * 49 * 16 + 5000
    assert training_macs(lenet, 1, mask).realisable == 3 * kept


def test_a_chain_of_deaths_is_followed_to_its_end():
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(5)))
    graph = trace(model, (2,))
    mask = full(graph)
    for k in (1, 2, 3):  # unit 0 of each layer feeds unit 0 of the next alone
        mask[f"{k}.weight"] = torch.eye(2, dtype=torch.bool)
    mask["4.weight"][:, 0] = False
    assert training_macs(graph, 1, mask).ideal == 3 * (4 + 2 + 2 + 2 + 2)
    assert training_macs(graph, 1, mask).realisable == 3 * (2 + 1 + 1 + 1 + 2)


def test_a_depthwise_convolution_shrinks_with_its_channels():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 1, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.Conv2d(4, 2, 1, bias=False),
    )
    graph = trace(model, (1, 5, 5))
    mask = full(graph)
    mask["2.weight"][:, 0] = False
    assert training_macs(graph, 1, mask).realisable == 3 * 25 * (3 + 3 * 9 + 2 * 3)


def test_masks_in_channels_last_strides_count_the_same(lenet):
    torch.manual_seed(0)
    mask = {x.weight: torch.rand(x.shape) < 0.05 for x in lenet.layers}
    last = {
        k: v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in mask.items()
    }
    assert training_macs(lenet, 1, last) == training_macs(lenet, 1, mask)


def test_lstm_gates_save_in_the_ideal_alone():
    graph = trace(Lstm(hidden=4, layers=1).build((7, 3), 2), (7, 3))
    mask = {"lstm.weight_ih_0": torch.zeros(16, 3, dtype=torch.bool)}
    dense = 7 * 16 * (3 + 4) + 8
    assert training_macs(graph, 1, mask) == Macs(3 * dense, 3 * (dense - 7 * 48), 3 * dense)


def test_embeddings_cost_nothing_and_are_not_in_the_density():
    graph = trace(Lstm(hidden=2, layers=1, embedding=3).build((7,), 5), (7,), is_tokens=True)
    params = {x.weight: torch.ones(x.shape) for x in graph.layers}
    params["embedding.weight"].zero_()
    assert density(params, graph) == 1.0
    params["lstm.weight_ih_0"].zero_()
    assert density(params, graph) == 1 - 24 / (24 + 16 + 10)
    mask = {name: t.bool() for name, t in params.items()}
    assert training_macs(graph, 1, mask).ideal == 3 * (7 * 16 + 10)


def test_density_is_the_share_of_nonzeros_in_maskable_weights_alone():
    graph = two_layers(bias=True)
    params = {
        "0.weight": torch.eye(4, 5),
        "0.bias": torch.zeros(4),
        "2.weight": torch.ones(3, 4),
        "2.bias": torch.zeros(3),
    }
    assert density(params, graph) == (4 + 12) / 32
