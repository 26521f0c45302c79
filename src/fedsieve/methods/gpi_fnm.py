"""GPI-FNM: neural matching with a divergence that draws popular atoms to the prior mean.

Paper    Xiao & Cheng, "Probabilistic Federated Learning of Neural Networks Incorporated with Global
         Posterior Information" (specification neural_matching, section 4).
Symbols  epsilon -> eps   KL(p(theta) || p(w)) -> divergence; the rest as in pfnm
Differs  the increments of the divergence are exact for unequal precisions, where equation (11)
         holds for one shared variance alone. "joint" and divergences other than KL are ours.
"""

from dataclasses import dataclass, replace

from fedsieve.core.method import register
from fedsieve.core.options import option
from fedsieve.matching import Settings
from fedsieve.matching.costs import KlMode
from fedsieve.matching.divergences import Divergence
from fedsieve.methods.pfnm import Pfnm


@register("gpi_fnm")
@dataclass(frozen=True, kw_only=True)
class GpiFnm(Pfnm):
    """PFNM with global posterior information: popular atoms are drawn to the prior mean."""

    eps: tuple[float, ...] = option(
        (0.1,), "weight of the divergence; one, or per layer; 0 is pfnm"
    )
    kl: KlMode = option("plugin", "atoms as in pfnm; 'joint': the divergence moves them as well")
    divergence: Divergence = option("kl", "between prior and client")

    @property
    def settings(self) -> Settings:
        return replace(super().settings, eps=self.eps, kl=self.kl, divergence=self.divergence)
