"""One file per method; importing this package registers them all."""

from fedsieve.methods import (
    central,
    fedavg,
    feddrop,
    fediter_ht,
    fedmedian,
    fedmix,
    fedopt,
    fedprox,
    fedsparse,
    local_only,
)

__all__ = [
    "central",
    "fedavg",
    "feddrop",
    "fediter_ht",
    "fedmedian",
    "fedmix",
    "fedopt",
    "fedprox",
    "fedsparse",
    "local_only",
]
