"""One file per method; importing this package registers them all."""

from fedsieve.methods import (
    central,
    fedavg,
    fediter_ht,
    fedmedian,
    fedmix,
    fedopt,
    fedprox,
    local_only,
    vardrop,
)

__all__ = [
    "central",
    "fedavg",
    "fediter_ht",
    "fedmedian",
    "fedmix",
    "fedopt",
    "fedprox",
    "local_only",
    "vardrop",
]
