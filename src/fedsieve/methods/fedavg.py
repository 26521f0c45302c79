"""FedAvg: local SGD and the mean of the local models.

Paper    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
         Data", AISTATS 2017, Algorithm 1; as EM: a Gaussian prior of vanishing precision.
Symbols  w_t -> server.weights   w^k_{t+1} -> up.weights   n_k -> up.examples
Differs  nothing; `weighting="uniform"` gives the mean 1/K of the EM paper.
"""

from dataclasses import dataclass

from fedsieve.core.method import register
from fedsieve.inference.priors import Gaussian
from fedsieve.methods.em import PointEM


@register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(PointEM):
    """Federated averaging."""

    @property
    def prior(self) -> Gaussian:
        return Gaussian(0.0)
