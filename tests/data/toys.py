"""Small data sets for tests of partitions and mini-batches."""

import torch

from fedsieve.data.dataset import Dataset


def labelled(y, y_test, **changes):
    """Rows numbered by their place, with the given classes."""
    y, y_test = torch.as_tensor(y), torch.as_tensor(y_test)
    fields = {
        "name": "toy",
        "x": torch.arange(len(y), dtype=torch.float32)[:, None],
        "y": y,
        "x_test": torch.arange(len(y_test), dtype=torch.float32)[:, None],
        "y_test": y_test,
        "kind": "classes",
        "num_outputs": 1 + int(max(y.max(), y_test.max())),
        "layout": "rows",
    }
    return Dataset(**(fields | changes))


def balanced(examples, tests, classes=10, **changes):
    """Classes in turn."""
    return labelled(torch.arange(examples) % classes, torch.arange(tests) % classes, **changes)
