"""A matching as a picture: which client uses which global atom, in text or as SVG."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedsieve.matching.costs import Ints
from fedsieve.matching.result import usage

_SHADES = " ░▒▓█"
_COLOURS = ("#2a7f9e", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#4a4e69")


def as_text(labels: Sequence[Ints], names: Sequence[str], width: int = 72) -> list[str]:
    """A line for each client; columns are atoms, the most used first, several to a character.

    The darker a character, the more of its atoms the client uses.
    """
    used = _by_popularity(labels)
    columns = min(width, len(used))
    edges = np.rint(np.linspace(0, len(used), columns + 1)).astype(int)
    pad = max(len(name) for name in names)
    lines = []
    for client, name in enumerate(names):
        shares = [used[a:b, client].mean() for a, b in pairwise(edges)]
        cells = "".join(_SHADES[int(np.ceil(share * (len(_SHADES) - 1)))] for share in shares)
        lines.append(f"{name:>{pad}} |{cells}|")
    return lines


def as_svg(labels: Sequence[Ints], names: Sequence[str], cell: int = 3) -> str:
    """A dot for each local neuron: its row among its client's neurons, its column the atom."""
    order = np.argsort(-usage(labels).sum(1), kind="stable")
    column = np.argsort(order)
    left, gap, top = 60, 2, 16
    dots, row = [], 0
    for client, (atoms, name) in enumerate(zip(labels, names, strict=True)):
        colour = _COLOURS[client % len(_COLOURS)]
        y = top + row * cell + client * gap
        dots.append(f'<text x="{left - 6}" y="{y + 10}" text-anchor="end">{name}</text>')
        places = sorted(column[atoms].tolist())
        dots += [
            f'<rect x="{left + place * cell}" y="{y + i * cell}" width="{cell}" height="{cell}" '
            f'fill="{colour}"/>'
            for i, place in enumerate(places)
        ]
        row += len(atoms)
    width = left + len(order) * cell + 10
    height = top + row * cell + len(labels) * gap + 24
    caption = f"{len(order)} global atoms, the most used first"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10">'
    )
    tail = f'<text x="{left}" y="{height - 8}">{caption}</text>'
    return "\n".join([head, *dots, tail, "</svg>"])


def _by_popularity(labels: Sequence[Ints]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    used = usage(labels)
    ordered: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = used[
        np.argsort(-used.sum(1), kind="stable")
    ]
    return ordered
