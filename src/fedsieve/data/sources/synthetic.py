"""Synthetic rows with a planted sparse truth, so that a method's support can be checked.

Rows are N(0, Sigma) with Sigma_ij = c^|i-j|; the truth w holds -1 or +1 at random places and 0
elsewhere; scores are s = x w + sigma e with sigma set by the signal-to-noise ratio, and

    values   y = s              (linear regression)
    binary   y = 1[s > 0]       (logistic regression)
    labels   y = 1[s > 0]       (one column for each label)
    classes  y = argmax s       (one column for each class)
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsieve.core import keys, options
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.sparsity import masks


@dataclass(frozen=True)
class Synthetic:
    """Options of synthetic data.

    Attributes:
        task: what is made of the scores, see above.
        classes: columns of the truth: classes or labels; values and binary targets have 1.
        density: share of the truth that is not zero.
        snr: variance of x w over that of the noise.
        correlation: c, between neighbouring features.
    """

    task: Literal["values", "binary", "labels", "classes"] = "classes"
    rows: int = 10000
    test_rows: int = 2000
    features: int = 1000
    classes: int = 10
    density: float = 0.05
    snr: float = 20.0
    correlation: float = 0.2

    about: ClassVar[str] = "Gaussian rows with a planted sparse truth, drawn from the seed"
    examples: ClassVar[str] = "10000 + 2000"

    def __post_init__(self) -> None:
        for name in ("rows", "test_rows", "features", "classes"):
            in_range(f"synthetic: {name}", getattr(self, name), 1)
        in_range("synthetic: density", self.density, 0, 1, above=True)
        in_range("synthetic: snr", self.snr, 0, above=True)
        in_range("synthetic: correlation", self.correlation, -1, 1)
        if self.task == "classes":
            in_range("synthetic: classes", self.classes, 2)
        if self._planted == 0:
            raise ConfigError(
                f"synthetic: density={self.density} plants nothing in "
                f"{self.features * self._columns} weights. Raise density or features."
            )

    def draw(self, key: Key) -> Dataset:
        """The data set at `key`."""
        x = self._draw_rows(fold(key, "rows"))
        truth = self._draw_truth(fold(key, "truth"))
        clean = x @ truth
        sigma = clean[: self.rows].square().mean().sqrt() / math.sqrt(self.snr)
        scores = clean + sigma * keys.normal(fold(key, "noise"), clean.shape)
        unlabelled = Dataset(
            name=str(options.spell(self)),
            x=x[: self.rows],
            y=scores[: self.rows],
            x_test=x[self.rows :],
            y_test=scores[self.rows :],
            kind=self.task,
            num_outputs=self._columns,
            layout="rows",
            truth=truth,
            scores=scores[: self.rows],
        )
        y, y_test = (unlabelled.label(s) for s in (unlabelled.y, unlabelled.y_test))
        return replace(unlabelled, y=y, y_test=y_test)

    @property
    def _columns(self) -> int:
        return 1 if self.task in {"values", "binary"} else self.classes

    @property
    def _planted(self) -> int:
        return masks.count_at(self.density, self.features * self._columns)

    def _draw_rows(self, key: Key) -> Tensor:
        by_feature = keys.normal(key, (self.features, self.rows + self.test_rows))
        fresh = math.sqrt(1 - self.correlation**2)
        for j in range(1, self.features):
            by_feature[j].mul_(fresh).add_(by_feature[j - 1], alpha=self.correlation)
        return by_feature.T.contiguous()

    def _draw_truth(self, key: Key) -> Tensor:
        size = self.features * self._columns
        flat = torch.zeros(size)
        signs = keys.uniform(fold(key, "signs"), (self._planted,)) < 0.5
        places = keys.sample(fold(key, "places"), size, self._planted)
        flat[places] = torch.where(signs, 1.0, -1.0)
        return flat.view(self.features, self._columns)
