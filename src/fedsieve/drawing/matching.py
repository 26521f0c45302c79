"""A matching as a picture: which client uses which global atom, in text or as SVG."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedsieve.drawing.plot import PALETTE
from fedsieve.drawing.svg import tag
from fedsieve.matching.costs import Ints
from fedsieve.matching.result import usage

_SHADES = " ░▒▓█"


def as_text(labels: Sequence[Ints], names: Sequence[str], width: int = 72) -> list[str]:
    """A line for each client; columns are atoms, the most used first, several to a character.

    The darker a character, the more of its atoms the client uses.
    """
    used = usage(labels)
    used = used[_order(used)]
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
    column = np.argsort(_order(usage(labels)))
    left, gap, top = 60, 2, 16
    shapes, row = [], 0
    for client, (atoms, name) in enumerate(zip(labels, names, strict=True)):
        colour = PALETTE[client % len(PALETTE)]
        y = top + row * cell + client * gap
        shapes.append(tag("text", name, x=left - 6, y=y + 10, text_anchor="end"))
        shapes += [
            tag("rect", x=left + place * cell, y=y + i * cell, width=cell, height=cell, fill=colour)
            for i, place in enumerate(sorted(column[atoms].tolist()))
        ]
        row += len(atoms)
    width = left + len(column) * cell + 10
    height = top + row * cell + len(labels) * gap + 24
    caption = f"{len(column)} global atoms, the most used first"
    return tag(
        "svg",
        *shapes,
        tag("text", caption, x=left, y=height - 8),
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        font_family="sans-serif",
        font_size=10,
    )


def _order(used: npt.NDArray[np.bool_]) -> Ints:
    """Atoms, the most used first."""
    return np.argsort(-used.sum(1), kind="stable")
