"""One file per paper table: settings, expected figures, tiers; importing them registers them."""

from fedsieve.recipes.papers import (
    attacks,
    communication_totals,
    dense_flops,
    em_fashion_mnist,
    fedsparse,
    flops_synthetic,
    matching_one_shot,
    matching_rounds,
    spafl_fashion_mnist,
    spafl_tables,
    vardrop,
)

__all__ = [
    "attacks",
    "communication_totals",
    "dense_flops",
    "em_fashion_mnist",
    "fedsparse",
    "flops_synthetic",
    "matching_one_shot",
    "matching_rounds",
    "spafl_fashion_mnist",
    "spafl_tables",
    "vardrop",
]
