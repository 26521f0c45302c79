"""FedMedian: a Laplace prior ties clients by L1, and the server takes the coordinate-wise median.

Paper    "Federated averaging as expectation-maximization", 2020 (specification fedsparse,
         section 1, third row); the median itself: Yin et al., ICML 2018.
Symbols  W -> server.weights   phi_s -> up.weights   1/b -> tie
Differs  the client's L1 tie is descended by its subgradient (0 where phi = W).
"""

from dataclasses import dataclass

from fedsieve.core.method import register
from fedsieve.core.options import in_range, option
from fedsieve.inference.priors import Laplace
from fedsieve.methods.em import PointEM


@register("fedmedian")
@dataclass(frozen=True, kw_only=True)
class FedMedian(PointEM):
    """Coordinate-wise weighted median of local models, which may be tied by L1."""

    tie: float = option(0.0, "1/b: weight of |w - w_server|_1 beside the mean loss")

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("fedmedian: tie", self.tie, 0)

    @property
    def prior(self) -> Laplace:
        return Laplace(self.tie)
