"""Fed-HT: hard thresholding on the server alone; clients train and send dense models.

Paper    Tong et al., "Federated Nonconvex Sparse Learning", 2022 (specification flops, section 6).
Symbols  as FedIter-HT
Differs  as FedIter-HT.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedsieve.core.method import register
from fedsieve.methods.fediter_ht import FedIterHT


@register("fedht")
@dataclass(frozen=True, kw_only=True)
class FedHT(FedIterHT):
    """Top-m weights after every average."""

    thresholds_steps: ClassVar[bool] = False
