"""One file per paper; importing this package registers them all."""

from fedsieve.methods import (
    fedavg,
    fedavg_prune,
    feddrop,
    fediter_ht,
    fedmedian,
    fedmix,
    fedopt,
    fedprox,
    fedsparse,
    flops,
    flops_pa,
    gpi_fnm,
    local_only,
    pfnm,
    spafl,
    vardrop,
)

__all__ = [
    "fedavg",
    "fedavg_prune",
    "feddrop",
    "fediter_ht",
    "fedmedian",
    "fedmix",
    "fedopt",
    "fedprox",
    "fedsparse",
    "flops",
    "flops_pa",
    "gpi_fnm",
    "local_only",
    "pfnm",
    "spafl",
    "vardrop",
]
