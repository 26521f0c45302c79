"""What a gate opens: weights one by one, or channels with all that belongs to them."""

import pytest
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold, uniform
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.sparsity.compaction import alive_channels
from fedsieve.sparsity.units import Channels, Weights

TASK = ModelTask(lambda: read_model("lenet5").build((1, 28, 28), 10), "classes", (1, 28, 28))
GRAPH = TASK.graph


def some_channels(seed=0, share=0.5):
    return {n: uniform(fold(seed, n), s) < share for n, s in Channels().shapes(GRAPH).items()}


def test_every_weight_and_bias_of_the_papers_cnn_has_a_gate():
    params = TASK.init_params(fold(0))
    assert Weights().shapes(GRAPH) == {n: tuple(p.shape) for n, p in params.items()}
    assert Weights().size(GRAPH) == 44426  # specification flops, section 10


def test_biases_can_be_left_without_gates():
    params = TASK.init_params(fold(0))
    weights = {n: tuple(p.shape) for n, p in params.items() if n.endswith("weight")}
    assert Weights(biases=False).shapes(GRAPH) == weights
    assert Weights(biases=False).size(GRAPH) == Channels().size(GRAPH) == GRAPH.maskable_size


def test_the_largest_weights_and_biases_are_chosen_together():
    params = TASK.init_params(fold(0))
    flat = torch.cat([p.abs().flatten() for p in params.values()])
    edge = flat.sort(descending=True).values[999]
    chosen = Weights().choose(GRAPH, params, 1000)
    assert chosen.keys() == params.keys()
    assert all(torch.equal(mask, params[n].abs() >= edge) for n, mask in chosen.items())


def test_expected_density_of_weights_is_the_mean_chance():
    prob = {n: uniform(fold(1, n), s) for n, s in Weights().shapes(GRAPH).items()}
    mean = torch.cat([p.flatten() for p in prob.values()]).mean()
    torch.testing.assert_close(Weights().density(GRAPH, prob), mean)


def test_channels_that_can_be_cut_are_the_hidden_ones():
    assert sorted(s for (s,) in Channels().shapes(GRAPH).values()) == [6, 16, 84, 120]


def test_density_of_chosen_channels_is_that_of_the_weights_they_cover():
    chosen = some_channels()
    mask = Channels().cover(GRAPH, chosen)
    kept = sum(int(m.count_nonzero()) for m in mask.values())
    share = kept / sum(m.numel() for m in mask.values())
    found = Channels().density(GRAPH, {n: c.double() for n, c in chosen.items()})
    assert found.item() == pytest.approx(share)


def test_closing_a_gate_cuts_its_channel_out_of_the_network():
    """Gates of 0 leave outputs as the covered weights give them, and compaction finds the same."""
    chosen = some_channels(seed=4)
    params = TASK.init_params(fold(2))
    factors = Channels().spread(GRAPH, {n: c.float() for n, c in chosen.items()})
    gated = {n: p * factors[n] if n in factors else p for n, p in params.items()}
    mask = Channels().cover(GRAPH, chosen)
    covered = {n: p * mask[n] if n in mask else p for n, p in gated.items()}
    x = uniform(fold(5, "x"), (3, 1, 28, 28))
    torch.testing.assert_close(TASK.predict(gated, x), TASK.predict(covered, x))
    nonzero = {n: p != 0 for n, p in covered.items()}
    alive = alive_channels(GRAPH, nonzero)
    assert all(torch.equal(alive[n], chosen[n]) for n in chosen)


def test_as_many_of_the_strongest_channels_are_chosen_as_fit():
    params = TASK.init_params(fold(3))
    budget = 5000
    chosen = Channels().choose(GRAPH, params, budget)
    assert all(c.any() for c in chosen.values())
    kept = sum(int(m.count_nonzero()) for m in Channels().cover(GRAPH, chosen).values())
    assert kept <= budget
    strength = Channels()._strength(GRAPH, params)
    out = torch.cat([strength[n][~c] for n, c in chosen.items()])
    best = out.max()
    wider = {n: c | (strength[n] == best) for n, c in chosen.items()}
    assert sum(int(m.count_nonzero()) for m in Channels().cover(GRAPH, wider).values()) > budget


def test_a_model_without_channels_to_cut_is_refused():
    task = ModelTask(lambda: read_model("linear").build((5,), 2), "classes", (5,))
    with pytest.raises(ConfigError, match="units=weights"):
        Channels().shapes(task.graph)
