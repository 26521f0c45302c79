"""Hard-concrete gates against their closed forms."""

import math

import pytest
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key
from fedsieve.sparsity.hard_concrete import HardConcrete

GATE = HardConcrete()


@pytest.mark.parametrize("logit", [-3.0, -1.0, 0.0, 2.0])
def test_the_share_of_zero_and_one_draws_is_the_closed_form(logit):
    z = GATE.sample(torch.full((100_000,), logit), Key(3))
    open_ = GATE.active_prob(torch.tensor(logit)).item()
    # z = 1 iff s >= (1 - low) / (high - low), the mirror image of z = 0.
    full = 1 - GATE.active_prob(torch.tensor(-logit)).item()
    for share, expected in (((z > 0).float().mean(), open_), ((z == 1).float().mean(), full)):
        spread = math.sqrt(expected * (1 - expected) / len(z))
        assert abs(share.item() - expected) < 4 * spread


def test_half_the_draws_lie_below_the_median():
    logits = torch.linspace(-1.5, 1.5, 7)
    z = GATE.sample(logits.expand(100_000, 7), Key(5))
    below = (z < GATE.median(logits)).float().mean(0)
    torch.testing.assert_close(below, torch.full((7,), 0.5), rtol=0, atol=4 * 0.5 / 316)


def test_the_median_is_zero_exactly_where_an_open_gate_is_the_less_likely():
    logits = torch.linspace(-4, 4, 801, dtype=torch.float64)
    assert torch.equal(GATE.median(logits) == 0, GATE.active_prob(logits) <= 0.5)


def test_invert_undoes_the_median_and_ends_at_the_shift():
    logits = torch.linspace(-1, 1, 41, dtype=torch.float64) * 0.999 * GATE.shift
    torch.testing.assert_close(GATE.invert(GATE.median(logits)), logits)
    ends = GATE.invert(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ends, torch.tensor([-GATE.shift, GATE.shift], dtype=torch.float64))


def test_the_shift_is_that_of_the_literature():
    # specification flops, section 2
    assert HardConcrete(beta=0.66).shift == pytest.approx(1.583, abs=5e-4)


def test_gradients_flow_where_a_draw_is_neither_zero_nor_one():
    logits = torch.zeros(1000, requires_grad=True)
    z = GATE.sample(logits, Key(1))
    (grad,) = torch.autograd.grad(z.sum(), logits)
    assert torch.equal(grad > 0, (z > 0) & (z < 1))
    assert (grad > 0).any()


def test_extreme_logits_give_whole_gates_without_nan():
    z = GATE.sample(torch.tensor([-900.0, 900.0]), Key(1))
    assert z.tolist() == [0, 1]


def test_a_stretch_that_does_not_reach_beyond_the_unit_interval_is_refused():
    with pytest.raises(ConfigError, match="low"):
        HardConcrete(low=0.0)
    with pytest.raises(ConfigError, match="high"):
        HardConcrete(high=1.0)
