"""Pictures of a matching show every neuron once."""

import re

import numpy as np

from fedsieve.drawing.matching import as_svg, as_text

# Atom 2 is used by all three clients, atoms 0, 1 and 3 by one each.
LABELS = [np.array([2, 0]), np.array([1, 2]), np.array([3, 2])]


def test_text_has_a_line_for_each_client_and_shared_atoms_first():
    assert as_text(LABELS, ["0", "1", "10"]) == [
        " 0 |██  |",
        " 1 |█ █ |",
        "10 |█  █|",
    ]


def test_narrow_text_puts_several_atoms_into_a_character():
    lines = as_text(LABELS, ["0", "1", "2"], width=2)
    assert [line.split("|")[1] for line in lines] == ["█ ", "▒▒", "▒▒"]


def test_svg_has_a_dot_for_each_neuron_in_the_column_of_its_atom():
    picture = as_svg(LABELS, ["a", "b", "c"], cell=10)
    columns = [int(x) for x in re.findall(r'<rect x="(\d+)"', picture)]
    left = min(columns)
    assert [(x - left) // 10 for x in columns] == [0, 1, 0, 2, 0, 3]
    assert "4 global atoms" in picture
    assert picture.startswith("<svg")
    assert picture.endswith("</svg>")
