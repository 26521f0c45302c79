"""Labels of a matching as tensors that a server keeps: "client.layer" -> atoms of its neurons."""

from collections.abc import Sequence

import numpy as np
import torch

from fedsieve.core.message import Params
from fedsieve.matching.costs import Ints
from fedsieve.matching.result import usage


def labels_to_tensors(clients: Sequence[int], assignments: Sequence[Sequence[Ints]]) -> Params:
    """Labels `[layer][place]` as named tensors, for the clients at these places."""
    return {
        f"{client}.{layer}": torch.from_numpy(labels[place])
        for place, client in enumerate(clients)
        for layer, labels in enumerate(assignments)
    }


def labels_from_tensors(tensors: Params) -> tuple[list[int], list[list[Ints]]]:
    """The inverse of `labels_to_tensors`; clients ascending."""
    names = [name.split(".") for name in tensors]
    clients = sorted({int(client) for client, _ in names})
    layers = sorted({int(layer) for _, layer in names})
    return clients, [[tensors[f"{c}.{layer}"].numpy() for c in clients] for layer in layers]


def atoms_of(tensors: Params, client: int, widths: Sequence[int]) -> list[Ints] | None:
    """A client's atoms in each layer: those matched, else the most used; None if too few."""
    if f"{client}.0" in tensors:
        return [tensors[f"{client}.{layer}"].numpy() for layer in range(len(widths))]
    _, layers = labels_from_tensors(tensors)
    ranked = [np.argsort(-usage(labels).sum(1), kind="stable") for labels in layers]
    popular = [atoms[:width] for atoms, width in zip(ranked, widths, strict=bool(tensors))]
    return popular if [len(atoms) for atoms in popular] == list(widths) else None
