"""Fed-HT: hard thresholding on the server alone; clients train and send dense models.

Paper    Tong et al., "Federated Nonconvex Sparse Learning", 2022 (specification flops, section 6).
Symbols  as FedIter-HT
Differs  as FedIter-HT; by default a higher density: what clients train outside the mask is cut
         away again after every mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsieve.core.method import register
from fedsieve.methods.fediter_ht import PAPER, FedIterHT


@register("fedht")
@dataclass(frozen=True, kw_only=True)
class FedHT(FedIterHT):
    """Top-m weights after every average."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    thresholds_steps: ClassVar[bool] = False
    target_density: float = 0.4  # rho: share of what is thresholded that is kept
