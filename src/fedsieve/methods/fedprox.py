"""FedProx: local training tied to the global model by a Gaussian prior.

Paper    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
Symbols  w^t -> server.weights   w_k^{t+1} -> up.weights   mu -> proximal
Differs  replies are weighted by example count; the paper samples clients by it instead.
"""

from dataclasses import dataclass

from fedsieve.core.method import register
from fedsieve.core.options import in_range, option
from fedsieve.inference.priors import Gaussian
from fedsieve.methods.em import PointEM


@register("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(PointEM):
    """Federated averaging with a proximal term."""

    proximal: float = option(0.01, "mu: weight of |w - w_server|^2 / 2 beside the mean loss")

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("fedprox: proximal", self.proximal, 0)

    @property
    def prior(self) -> Gaussian:
        return Gaussian(self.proximal)
