"""One file per method; importing this package registers them all."""

from fedsieve.methods import (
    central,
    fedavg,
    fedavg_prune,
    feddrop,
    fedht,
    fediter_ht,
    fedmedian,
    fedmix,
    fedopt,
    fedprox,
    fedsparse,
    flops,
    flops_pa,
    flops_pa_central,
    local_only,
)

__all__ = [
    "central",
    "fedavg",
    "fedavg_prune",
    "feddrop",
    "fedht",
    "fediter_ht",
    "fedmedian",
    "fedmix",
    "fedopt",
    "fedprox",
    "fedsparse",
    "flops",
    "flops_pa",
    "flops_pa_central",
    "local_only",
]
