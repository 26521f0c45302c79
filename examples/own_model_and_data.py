"""A module and a data set of your own: six clients learn to tell benign from malignant tumours.

The 569 rows of 30 measurements come with scikit-learn. The module has a residual connection, which
the layer graph follows, so every method can mask it and its MACs are counted.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import fedsieve


class Residual(nn.Module):
    """One hidden layer around which its input is carried."""

    def __init__(self, features: int = 30, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        x = x + torch.relu(self.middle(x))
        out: Tensor = self.leave(x)
        return out


def tumours() -> fedsieve.Dataset:
    """Every fifth row is for testing; features have mean 0 and deviation 1 over the others."""
    rows, classes = load_breast_cancer(return_X_y=True)
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(classes, dtype=torch.int64)
    is_test = torch.arange(len(x)) % 5 == 0
    mean, std = x[~is_test].mean(0), x[~is_test].std(0)
    x = (x - mean) / std
    return fedsieve.Dataset(
        name="tumours",
        x=x[~is_test],
        y=y[~is_test],
        x_test=x[is_test],
        y_test=y[is_test],
        kind="classes",
        num_outputs=2,
        layout="rows",
    )


def main(rounds: int = 15) -> None:
    """Train with half of the weights, then use the model outside of fedsieve."""
    data = tumours()
    result = fedsieve.run(
        method="fediter_ht",
        target_density=0.5,
        dataset=data,
        model=Residual,
        partition="dirichlet(0.5)",
        clients=6,
        cohort=6,
        rounds=rounds,
        batch_size=16,
        lr=0.1,
    )
    module = Residual()
    module.load_state_dict(result.model or {})
    with torch.no_grad():
        right = module(data.x_test).argmax(1) == data.y_test
    print(f"accuracy in the run {result.summary.global_accuracy:.3f}")
    print(f"accuracy of the module {right.float().mean():.3f}")
    print(f"density {result.summary.density:.3f}")


if __name__ == "__main__":
    main()
