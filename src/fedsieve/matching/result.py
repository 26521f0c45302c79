"""What a matching is: labels, atoms, the fused network, and how the objective fell."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsieve.matching.assign import LayerMatch
from fedsieve.matching.atoms import Network, subnetwork
from fedsieve.matching.costs import Ints


@dataclass(frozen=True, eq=False)
class Matching:
    """Clients' networks matched into one.

    Attributes:
        assignments: `[layer][client]` is the global atom of each local neuron; layer 0 is the
            bottom hidden layer.
        global_weights: the fused network [W0, b0, W1, b1, ...].
        layers: for each hidden layer posterior means, counts, energy and every re-matching.
        orders: [layer] the order (sweeps, clients) in which clients were re-matched.
        blocks: rows of each W that belong to one sending neuron.
    """

    assignments: list[list[Ints]]
    global_weights: Network
    layers: list[LayerMatch]
    orders: list[Ints]
    blocks: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Atoms of each hidden layer."""
        return tuple(len(layer.means) for layer in self.layers)

    @property
    def counts(self) -> list[Ints]:
        """[layer] by how many clients each atom is used."""
        return [layer.counts for layer in self.layers]

    @property
    def objective(self) -> float:
        """The energy F of all layers."""
        return sum(layer.energy for layer in self.layers)

    def subnetwork(self, client: int) -> Network:
        """The client's part of the global network, in the order of its own neurons."""
        atoms = [labels[client] for labels in self.assignments]
        return subnetwork(self.global_weights, atoms, self.blocks)

    def __str__(self) -> str:
        return "\n".join(table(self.assignments, [layer.energy for layer in self.layers]))


def table(assignments: Sequence[Sequence[Ints]], energies: Sequence[float]) -> Iterator[str]:
    """Lines of text: for each layer its atoms and by how many clients they are used."""
    num_clients = len(assignments[0])
    yield f"{'layer':>5}  {'neurons':>8}  {'atoms':>6}  {'objective':>12}  atoms by users"
    for number, (labels, value) in enumerate(zip(assignments, energies, strict=True), 1):
        counts = usage(labels).sum(1)
        users = np.bincount(counts, minlength=num_clients + 1)
        spread = "  ".join(f"{n}:{users[n]}" for n in range(1, num_clients + 1) if users[n])
        widths = sorted({len(atoms) for atoms in labels})
        neurons = f"{widths[0]}" if len(widths) == 1 else f"{widths[0]}-{widths[-1]}"
        yield f"{number:>5}  {neurons:>8}  {len(counts):>6}  {value:>12.2f}  {spread}"


def usage(labels: Sequence[Ints]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """(atoms, clients): whether a client uses an atom."""
    uses = np.zeros((1 + max(int(atoms.max()) for atoms in labels), len(labels)), np.bool_)
    for client, atoms in enumerate(labels):
        uses[atoms, client] = True
    return uses
