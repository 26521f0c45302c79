"""Labels are read as they were written, and serve clients that have none yet."""

import numpy as np

from fedsieve.matching.labels import atoms_of, labels_from_tensors, labels_to_tensors

# Layer 0: atom 1 has three users, atom 2 two, the others one. Layer 1: each atom has one or two.
LAYERS = [
    [np.array([1, 0]), np.array([2, 1]), np.array([1, 3, 2])],
    [np.array([0]), np.array([1]), np.array([1])],
]
LABELS = labels_to_tensors([4, 0, 11], LAYERS)


def test_labels_are_read_as_written_with_clients_ascending():
    clients, layers = labels_from_tensors(LABELS)
    assert clients == [0, 4, 11]
    for found, written in zip(layers, LAYERS, strict=True):
        for own, expected in zip(found, [written[1], written[0], written[2]], strict=True):
            np.testing.assert_array_equal(own, expected)


def test_a_matched_client_has_the_atoms_of_its_labels():
    first, second = atoms_of(LABELS, 11, [3, 1])
    np.testing.assert_array_equal(first, [1, 3, 2])
    np.testing.assert_array_equal(second, [1])


def test_others_have_the_most_used_atoms_ties_by_number():
    first, second = atoms_of(LABELS, 1, [3, 1])
    assert first.tolist() == [1, 2, 0]
    assert second.tolist() == [1]


def test_a_client_wider_than_a_layer_has_none_nor_has_any_without_labels():
    assert atoms_of(LABELS, 1, [4, 2]) is not None
    assert atoms_of(LABELS, 1, [4, 3]) is None
    assert atoms_of(LABELS, 1, [5, 2]) is None
    assert atoms_of({}, 1, [1, 1]) is None
