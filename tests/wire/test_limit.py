"""The information limit, against hand-computed entropies."""

import numpy as np
import pytest
import torch

from fedsieve.methods import fedavg, fediter_ht, fedmix
from fedsieve.wire.inspect import mask_bits, message_limit, value_bits


def test_a_fair_mask_costs_one_bit_a_position_and_a_constant_one_nothing():
    fair = np.arange(1000) % 2 == 0
    assert mask_bits(fair) == pytest.approx(1000)
    assert mask_bits(np.ones(10, bool)) == mask_bits(np.zeros(0, bool)) == 0


def test_values_cost_the_entropy_of_their_exponents_and_raw_mantissas():
    """1.x and 2.x in equal parts: one bit of exponent, 24 of sign and mantissa."""
    values = np.concatenate([np.linspace(1, 1.9, 50), np.linspace(2, 3.9, 50)]).astype(np.float32)
    assert value_bits(values) == pytest.approx(100 * 25)
    assert value_bits(values, "bf16") == pytest.approx(100 * 9)
    assert value_bits(np.array([-1, 1] * 50, np.float32), "int8") == pytest.approx(100)


def test_a_message_adds_masks_and_kept_values():
    weights = {"w": torch.tensor([1.0, 0.0, 1.5, 0.0]), "b": torch.tensor([1.25])}
    mask = {"w": weights["w"] != 0}
    message = fediter_ht.Up(mask, weights, 5)
    assert message_limit(message) == pytest.approx((4 + 3 * 24 + 3) / 8)  # 5 takes 3 bits
    assert message_limit(fedavg.Up(weights | {"w": torch.ones(4)}, 0)) == pytest.approx(121 / 8)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_exact_fields_cost_as_much_at_every_precision(precision):
    message = fedmix.Down({}, {"shares": torch.tensor([0.5, 0.75])}, 0)
    assert message_limit(message, precision) == pytest.approx((2 * 24 + 1) / 8)
