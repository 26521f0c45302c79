"""One file per paper: settings, expected figures, tiers; importing them registers them."""

from fedsieve.recipes.papers import (
    attacks,
    em_fashion_mnist,
    fedsparse,
    flops,
    matching,
    spafl,
    totals,
    vardrop,
)

__all__ = [
    "attacks", "em_fashion_mnist", "fedsparse", "flops", "matching", "spafl", "totals", "vardrop",
]  # fmt: skip
