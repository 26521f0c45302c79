"""Hard-concrete gates: a relaxed Bernoulli variable that is exactly 0 or 1 with some probability.

Louizos et al., "Learning Sparse Neural Networks through L0 Regularization", ICLR 2018. A gate with
logit a is a logistic draw of temperature beta, stretched to (low, high) and clipped to [0, 1]:

    s = sigmoid((logit u + a) / beta),   z = clip(s (high - low) + low, 0, 1),   u uniform.

All functions are element-wise and stay in logit space (specification flops, section 2;
specification fedsparse, sections 3 and 4).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsieve.core import keys
from fedsieve.core.keys import Key
from fedsieve.core.options import in_range

_MARGIN = 1e-6  # keeps the uniform draw away from 0 and 1, whose logits are infinite


@dataclass(frozen=True)
class HardConcrete:
    """Temperature and stretch of the gates; the defaults are the paper's."""

    beta: float = 2 / 3
    low: float = -0.1  # gamma
    high: float = 1.1  # zeta

    def __post_init__(self) -> None:
        in_range("gates: beta", self.beta, 0, above=True)
        in_range("gates: low", self.low, -1, 0, below=True)
        in_range("gates: high", self.high, 1, 2, above=True)

    @property
    def shift(self) -> float:
        """The distance of P(z != 0) = 1/2 from logit 0: -beta log(-low / high)."""
        return -self.beta * math.log(-self.low / self.high)

    def sample(self, logits: Tensor, key: Key) -> Tensor:
        """One draw for every logit, differentiable where it is neither 0 nor 1."""
        u = keys.uniform(key, logits.shape).clamp_(_MARGIN, 1 - _MARGIN)
        return self._stretched((torch.logit(u) + logits) / self.beta)

    def active_prob(self, logits: Tensor) -> Tensor:
        """P(z != 0)."""
        return torch.sigmoid(logits + self.shift)

    def median(self, logits: Tensor) -> Tensor:
        """The median draw: 0 exactly where P(z != 0) <= 1/2."""
        return self._stretched(logits / self.beta)

    def invert(self, gates: Tensor) -> Tensor:
        """The logits of which `gates` are the medians; -shift for 0 and +shift for 1."""
        return self.beta * torch.logit((gates - self.low) / (self.high - self.low))

    def _stretched(self, logits: Tensor) -> Tensor:
        stretched = torch.sigmoid(logits) * (self.high - self.low) + self.low
        return stretched.clamp(0, 1)
