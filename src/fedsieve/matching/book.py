"""Who uses which atom, as tensors that a server keeps: "client.layer" -> atoms of its neurons."""

from collections.abc import Sequence

import numpy as np
import torch

from fedsieve.core.message import Params
from fedsieve.matching.costs import Ints
from fedsieve.matching.result import usage


def write_book(clients: Sequence[int], assignments: Sequence[Sequence[Ints]]) -> Params:
    """The book of a matching's labels `[layer][place]`, for the clients at these places."""
    return {
        f"{client}.{layer}": torch.from_numpy(labels[place])
        for place, client in enumerate(clients)
        for layer, labels in enumerate(assignments)
    }


def read_book(book: Params) -> tuple[list[int], list[list[Ints]]]:
    """The inverse of `write_book`; clients ascending."""
    names = [name.split(".") for name in book]
    clients = sorted({int(client) for client, _ in names})
    layers = sorted({int(layer) for _, layer in names})
    return clients, [[book[f"{c}.{layer}"].numpy() for c in clients] for layer in layers]


def own_atoms(book: Params, client: int, widths: Sequence[int]) -> list[Ints] | None:
    """A client's atoms in each layer: those matched, else the most used; None if too few."""
    if f"{client}.0" in book:
        return [book[f"{client}.{layer}"].numpy() for layer in range(len(widths))]
    ranked = [np.argsort(-usage(labels).sum(1), kind="stable") for labels in read_book(book)[1]]
    found = [atoms[:width] for atoms, width in zip(ranked, widths, strict=bool(book))]
    return found if [len(atoms) for atoms in found] == list(widths) else None
