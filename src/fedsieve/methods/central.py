"""Central training on the union of all shards. The upper anchor.

Paper    none; what federated training could reach if data could be gathered.
Symbols  w -> state.weights of the single pseudo-client
Differs  evaluated on the same test shards as every other method.
"""

from dataclasses import dataclass

from fedsieve.core.method import register
from fedsieve.methods.local_only import LocalOnly


@register("central")
@dataclass(frozen=True, kw_only=True)
class Central(LocalOnly):
    """One model on all data."""

    partition = "pooled"
