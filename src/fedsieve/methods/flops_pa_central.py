"""FLoPS-PA on the union of all shards: what its federated form could reach.

Paper    "Federated learning with L0 constraint via probabilistic gates for sparsity", 2025: the
         central baseline (specification flops, section 6).
Symbols  as FLoPS-PA
Differs  the messages of the single pseudo-client are encoded and counted like any other's.
"""

from dataclasses import dataclass

from fedsieve.core.method import register
from fedsieve.methods.flops_pa import FlopsPA


@register("flops_pa_central")
@dataclass(frozen=True, kw_only=True)
class FlopsPACentral(FlopsPA):
    """One client that holds all data."""

    partition = "pooled"
