"""FedAvg, of which the m largest weights are deployed: the baseline of one-shot pruning.

Paper    the magnitude-pruning rival of sparse methods (specification flops, section 6).
Symbols  H_m -> masks.top_k   m = floor(rho P)   rho -> target_density
Differs  training is FedAvg's and dense; scores of earlier rounds are those of pruning there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsieve.core.message import Params
from fedsieve.core.method import register
from fedsieve.core.options import in_range, option
from fedsieve.methods.fedavg import PAPER, FedAvg, Memory, Server
from fedsieve.sparsity import masks
from fedsieve.sparsity.units import Weights, budget


@register("fedavg_prune")
@dataclass(frozen=True, kw_only=True)
class FedAvgPrune(FedAvg):
    """Dense federated averaging, of which the m largest weights are deployed."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER | {"target_density": 0.1}}
    target_density: float = option(0.4, "rho: share of what is pruned that is deployed")
    units: Weights = option(Weights(biases=False), "what is pruned: weights, or their biases too")

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("target_density", self.target_density, 0, 1, above=True)
        budget(self.units, self.task.graph, self.target_density)

    def model(self, server: Server, state: Memory) -> Params | None:
        weights = super().model(server, state)
        if weights is None:
            return None
        graph = self.task.graph
        kept = budget(self.units, graph, self.target_density)
        return masks.apply(weights, self.units.choose(graph, weights, kept))
