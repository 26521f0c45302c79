"""Data that stays with its owners: the server knows its form and how many owners there are."""

from dataclasses import dataclass
from typing import Literal

import torch

from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset, Layout

_LAYOUTS: dict[int, Layout] = {1: "rows", 3: "images"}


@dataclass(frozen=True, kw_only=True)
class Remote:
    """The form of data that stays with the nodes of a deployment.

    Attributes:
        shape: of one example: [features], or [height, width, channels] of an image.
        task: what is predicted.
        outputs: how many classes or labels; values have 1.
    """

    owners: int
    shape: tuple[int, ...]
    outputs: int
    task: Literal["values", "labels", "classes"] = "classes"

    def __post_init__(self) -> None:
        in_range("remote: owners", self.owners, 1)
        in_range("remote: outputs", self.outputs, 1)
        in_range("remote: len(shape)", len(self.shape), 1, 3)
        for size in self.shape:
            in_range("remote: shape", size, 1)

    def load(self) -> Dataset:
        """One empty example for each owner, so that everything else has its shape."""
        x = torch.zeros(self.owners, *self.shape)
        y = torch.zeros(self.owners, dtype=torch.int64)
        if self.task == "labels":
            y = torch.zeros(self.owners, self.outputs)
        elif self.task == "values":
            y = torch.zeros(self.owners)
        owners = torch.arange(self.owners)
        return Dataset(
            name="remote",
            x=x,
            y=y,
            x_test=x,
            y_test=y,
            kind=self.task,
            num_outputs=self.outputs,
            layout=_LAYOUTS.get(len(self.shape), "rows"),
            owners=owners,
            owners_test=owners,
        )
