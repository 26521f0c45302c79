"""The book of labels is read as it was written, and serves clients that are not in it."""

import numpy as np

from fedsieve.matching.book import own_atoms, read_book, write_book

# Layer 0: atom 1 has three users, atom 2 two, the others one. Layer 1: each atom has one or two.
LAYERS = [
    [np.array([1, 0]), np.array([2, 1]), np.array([1, 3, 2])],
    [np.array([0]), np.array([1]), np.array([1])],
]
BOOK = write_book([4, 0, 11], LAYERS)


def test_a_book_is_read_as_it_was_written_clients_ascending():
    clients, layers = read_book(BOOK)
    assert clients == [0, 4, 11]
    for found, written in zip(layers, LAYERS, strict=True):
        for own, expected in zip(found, [written[1], written[0], written[2]], strict=True):
            np.testing.assert_array_equal(own, expected)


def test_who_stands_in_the_book_has_its_own_atoms():
    first, second = own_atoms(BOOK, 11, [3, 1])
    np.testing.assert_array_equal(first, [1, 3, 2])
    np.testing.assert_array_equal(second, [1])


def test_others_have_the_most_used_atoms_ties_by_number():
    first, second = own_atoms(BOOK, 1, [3, 1])
    assert first.tolist() == [1, 2, 0]
    assert second.tolist() == [1]


def test_who_is_wider_than_a_layer_has_none_nor_has_anyone_in_an_empty_book():
    assert own_atoms(BOOK, 1, [4, 2]) is not None
    assert own_atoms(BOOK, 1, [4, 3]) is None
    assert own_atoms(BOOK, 1, [5, 2]) is None
    assert own_atoms({}, 1, [1, 1]) is None
