"""One file per paper table: settings, expected figures, tiers; importing them registers them."""

from fedsieve.recipes import (
    communication_totals,
    dense_flops,
    em_fashion_mnist,
    flops_synthetic,
)

__all__ = ["communication_totals", "dense_flops", "em_fashion_mnist", "flops_synthetic"]
