"""Counts, owners and repairs, on cases small enough to do by hand."""

import numpy as np

from fedsieve.core.keys import Key
from fedsieve.data.partitions import splits
from fedsieve.data.partitions.splits import NOBODY


def test_apportion_rounds_running_sums():
    share = np.full((3, 1), 1 / 3)
    # Edges 1.67, 3.33, 5 are rounded to 2, 3, 5.
    assert splits.apportion(share, np.array([5])).ravel().tolist() == [2, 1, 2]


def test_apportion_leaves_a_remainder_where_shares_do_not_sum_to_one():
    assert splits.apportion(np.array([[0.25], [0.25]]), np.array([8])).ravel().tolist() == [2, 2]


def test_deal_gives_each_client_its_counts_and_the_rest_to_nobody():
    groups = np.array([0, 1, 0, 1, 0, 1, 1])
    owner = splits.distribute(groups, np.array([[2, 1], [0, 2]]), Key(0))
    for group, expected in ((0, {0: 2, NOBODY: 1}), (1, {0: 1, 1: 2, NOBODY: 1})):
        holders, counts = np.unique(owner[groups == group], return_counts=True)
        assert dict(zip(holders.tolist(), counts.tolist(), strict=True)) == expected


def test_shares_of_a_group_nobody_has_seen_are_equal():
    share = splits.shares(np.array([0, 0, 1]), np.array([0, 0, 0]), num_clients=2, num_groups=2)
    assert share.tolist() == [[2 / 3, 1 / 2], [1 / 3, 1 / 2]]


def test_empty_clients_take_free_examples_first_and_then_the_last_of_the_largest():
    owner = np.array([1, 1, 1, NOBODY, 1])
    assert splits.fill_empty(owner, 4).tolist() == [1, 1, 3, 0, 2]
    assert owner.tolist() == [1, 1, 1, NOBODY, 1]


def test_equal_hands_turn_to_other_groups_when_a_pool_runs_dry():
    preference = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    counts = splits.equal_hands(preference, np.array([5, 3, 4]))
    # Each takes 4. The first leaves (1, 3, 4); the second wants (2, 2), gets 1 of group 0 and the
    # rest of group 1; the third likes group 1 alone, which is empty, and takes what is left.
    assert counts.tolist() == [[4, 0, 0], [1, 3, 0], [0, 0, 4]]


def test_held_out_never_takes_all():
    owner = np.array([0, 0, 0, 0, 1, NOBODY])
    for fraction, expected in ((0.5, [2, 0]), (1.0, [3, 0]), (0.0, [0, 0])):
        is_out = splits.held_out(owner, 2, fraction, Key(0))
        assert [int(is_out[owner == client].sum()) for client in (0, 1)] == expected
        assert not is_out[5]


def test_members_are_ascending_and_leave_out_nobody():
    owner = np.array([1, 0, NOBODY, 1, 0])
    assert [rows.tolist() for rows in splits.members(owner, 3)] == [[1, 4], [0, 3], []]


def test_who_holds_an_even_part_gets_nothing_of_later_groups():
    share = np.array([[0.9, 0.5, 0.2], [0.1, 0.5, 0.8]])
    counts = splits.capped(share, np.array([10, 10, 10]))
    # After 9 and 1 all may still take; after 14 and 6 too (even part 15); then client 0 takes 2.
    assert counts.tolist() == [[9, 5, 2], [1, 5, 8]]
    counts = splits.capped(share, np.array([20, 5, 5]))  # client 0 holds 18 > 15 after the first
    assert counts.tolist() == [[18, 0, 0], [2, 5, 5]]
