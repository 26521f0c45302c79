"""Partitions: what holds for all of them, and what each promises."""

import hashlib
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.toys import balanced, labelled
from fedsieve.core import options
from fedsieve.core.errors import ConfigError, DataError
from fedsieve.core.keys import Key, fold
from fedsieve.data.partitions.partition import Partition, _fingerprint, describe, split
from fedsieve.data.partitions.schemes import (
    PARTITIONS,
    CappedDirichlet,
    Clusters,
    Dirichlet,
    FeatureShift,
    Iid,
    Natural,
    NumpyDirichlet,
    Quantity,
    Shards,
)

KEY = fold(0, "partition")
alphas = st.sampled_from([1e-6, 0.05, 0.5, 1.0, 100.0])
whole_schemes = st.one_of(
    st.just(Iid()),
    st.builds(Quantity, alphas),
    st.builds(Dirichlet, alphas, st.booleans()),
    st.builds(CappedDirichlet, alphas, st.just(0)),
    st.builds(NumpyDirichlet, alphas, st.integers(0, 9), st.just(0)),
    st.builds(Shards, st.integers(1, 3)),
)
seeds = st.integers(0, 2**63).map(Key)


@st.composite
def problems(draw):
    """Classes of training and test examples, and a number of clients they suffice for."""
    clients = draw(st.integers(1, 30))
    classes = st.integers(0, draw(st.integers(0, 6)))
    y = draw(st.lists(classes, min_size=clients, max_size=clients + 60))
    y_test = draw(st.lists(classes, min_size=clients, max_size=clients + 40))
    return labelled(y, y_test), clients


def everything(shards):
    return torch.cat(shards).sort().values.tolist()


def class_counts(examples, y, classes):
    return torch.stack([y[rows].bincount(minlength=classes) for rows in examples])


@given(problems(), whole_schemes, seeds, st.sampled_from([0.0, 0.2, 1.0]))
@settings(max_examples=150, deadline=None)
def test_shards_are_disjoint_cover_the_set_and_leave_no_client_empty(problem, scheme, key, share):
    data, clients = problem
    partition = split(data, scheme, clients, key, share)
    assert everything(partition.train + partition.validation) == list(range(len(data.x)))
    assert everything(partition.test) == list(range(len(data.x_test)))
    assert len(partition.train) == len(partition.test) == len(partition.validation) == clients
    assert all(len(rows) > 0 for rows in partition.train + partition.test)
    for rows in partition.train + partition.test + partition.validation:
        assert rows.dtype == torch.int64
        assert rows.equal(rows.sort().values)


@given(problems(), whole_schemes, seeds)
@settings(max_examples=50, deadline=None)
def test_equal_keys_give_equal_fingerprints(problem, scheme, key):
    data, clients = problem
    assert split(data, scheme, clients, key).fingerprint == (
        split(data, scheme, clients, key).fingerprint
    )


@given(problems(), whole_schemes, seeds)
@settings(max_examples=100, deadline=None)
def test_test_shards_have_the_proportions_of_the_training_shards(problem, scheme, key):
    data, clients = problem
    by_class = not isinstance(scheme, Iid | Quantity)
    y, y_test = (v if by_class else torch.zeros_like(v) for v in (data.y, data.y_test))
    assigned = scheme.assign(data, clients, key)  # before empty clients are given an example
    for group in y_test.unique():
        of_group = torch.from_numpy(assigned.owner)[y == group]
        held = torch.from_numpy(assigned.test_owner)[y_test == group].bincount(minlength=clients)
        share = of_group.bincount(minlength=clients) / max(1, len(of_group))
        if len(of_group) == 0:
            share += 1 / clients
        assert (held - share * held.sum()).abs().max() <= 1 + 1e-4


@pytest.mark.parametrize(
    "scheme", [Iid(), Quantity(1.0), Dirichlet(0.5), Dirichlet(0.5, balanced=True), Shards(2)]
)
def test_other_keys_give_other_partitions(scheme):
    data = balanced(1000, 200)
    prints = {split(data, scheme, 10, fold(seed, "p")).fingerprint for seed in range(20)}
    assert len(prints) == 20


@pytest.mark.parametrize(
    "scheme", [Quantity(1e-6), Dirichlet(1e-6), Dirichlet(1e-6, balanced=True), Shards(5)]
)
def test_as_many_clients_as_examples_get_one_each(scheme):
    data = balanced(300, 300)
    partition = split(data, scheme, 300, KEY)
    assert [len(rows) for rows in partition.train] == [1] * 300
    assert [len(rows) for rows in partition.test] == [1] * 300


def test_500_clients_on_60000_examples_take_less_than_two_seconds():
    data = balanced(60000, 10000)
    for scheme in (
        Iid(),
        Quantity(0.01),
        Dirichlet(0.01),
        Dirichlet(0.1, balanced=True),
        Shards(2),
    ):
        started = time.perf_counter()
        split(data, scheme, 500, KEY, 0.1)
        assert time.perf_counter() - started < 2


def test_iid_parts_are_equal_to_one_example():
    sizes = [len(rows) for rows in split(balanced(1003, 101), Iid(), 10, KEY).train]
    assert sorted(set(sizes)) == [100, 101]
    assert sum(sizes) == 1003


def test_quantity_sizes_spread_as_the_dirichlet_law_says():
    clients, alpha = 400, 2.0
    partition = split(balanced(400_000, 4000), Quantity(alpha), clients, KEY)
    share = torch.tensor([len(rows) for rows in partition.train]) / 400_000
    # A component of a symmetric Dirichlet has variance m (1 - m) / (K alpha + 1), m = 1 / K.
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert share.var().item() == pytest.approx(variance, rel=0.3)


def test_dirichlet_deals_each_class_by_its_own_draw():
    classes, clients, alpha = 100, 10, 0.5
    data = balanced(200_000, 2000, classes)
    partition = split(data, Dirichlet(alpha), clients, KEY)
    share = class_counts(partition.train, data.y, classes) / 2000
    torch.testing.assert_close(share.sum(0), torch.ones(classes))
    variance = 0.1 * 0.9 / (clients * alpha + 1)
    assert share.var().item() == pytest.approx(variance, rel=0.25)


def test_a_large_alpha_makes_label_shares_even():
    data = balanced(10_000, 1000)
    for scheme in (Dirichlet(1e9), Dirichlet(1e9, balanced=True)):
        counts = class_counts(split(data, scheme, 10, KEY).train, data.y, 10)
        assert (counts - 100).abs().max() <= 1


def test_balanced_dirichlet_gives_equal_sizes():
    data = balanced(1003, 500)
    for alpha in (1e-6, 0.1, 10.0):
        sizes = {len(r) for r in split(data, Dirichlet(alpha, balanced=True), 10, KEY).train}
        assert sizes == {100, 101}


def test_a_tiny_alpha_gives_balanced_clients_one_class_until_pools_run_dry():
    data = balanced(1000, 100)
    counts = class_counts(split(data, Dirichlet(1e-9, balanced=True), 20, KEY).train, data.y, 10)
    # The first client wants 50 of a single class, and every pool still holds 100.
    assert counts[0].max() == 50


def test_balanced_dirichlet_follows_the_class_frequencies():
    y = torch.tensor([0] * 900 + [1] * 100)
    data = labelled(y, y)
    counts = class_counts(split(data, Dirichlet(1e9, balanced=True), 10, KEY).train, y, 2)
    assert counts.tolist() == [[90, 10]] * 10


def _listed(y, clients, alpha, seed, least):
    """The rule of specification neural_matching, section 11, over lists as programs write it."""
    np.random.seed(seed)  # noqa: NPY002 - what is to be equalled
    hands = [[]]
    while min(map(len, hands)) < least:
        hands = [[] for _ in range(clients)]
        for label in range(max(y) + 1):
            rows = [row for row, own in enumerate(y) if own == label]
            np.random.shuffle(rows)  # noqa: NPY002
            share = np.random.dirichlet([alpha] * clients)  # noqa: NPY002
            share = share * [len(hand) < len(y) / clients for hand in hands]
            edges = [int(total * len(rows)) for total in np.cumsum(share / share.sum())]
            for hand, start, end in zip(hands, [0, *edges], [*edges[:-1], len(rows)], strict=False):
                hand.extend(rows[start:end])
    return hands


@pytest.mark.parametrize("seed", [0, 1, 2, 9])
def test_numpy_dirichlet_is_the_split_of_programs_with_that_seed(seed):
    data = balanced(600, 60)
    scheme = NumpyDirichlet(0.4, seed)
    ours = [rows.tolist() for rows in split(data, scheme, 8, KEY).train]
    assert ours == [sorted(hand) for hand in _listed(data.y.tolist(), 8, 0.4, seed, 10)]
    assert min(map(len, ours)) >= 10
    again = split(data, scheme, 8, fold(1, "partition"))
    assert [rows.tolist() for rows in again.train] == ours


def test_capped_schemes_say_when_somebody_is_always_left_with_too_little():
    for scheme in (CappedDirichlet(0.4, 90), NumpyDirichlet(0.4, 0, 90)):
        with pytest.raises(DataError, match=r"some of 8 clients had fewer than 90.*raise alpha"):
            split(balanced(600, 60), scheme, 8, KEY)


def test_shards_give_few_classes_to_each_client():
    data = balanced(1000, 1000)
    partition = split(data, Shards(per_client=2), 50, KEY)  # 100 shards of 10, 10 for each class
    counts = class_counts(partition.train, data.y, 10)
    assert counts.sum(1).tolist() == [20] * 50
    assert ((counts > 0).sum(1) <= 2).all()
    assert class_counts(partition.test, data.y_test, 10).equal(counts)


def blobs(examples, tests):
    """Three far groups of points, numbered as classes."""
    data = balanced(examples, tests, classes=3)
    spread = torch.linspace(0, 1, examples)[:, None], torch.linspace(0, 1, tests)[:, None]
    return replace(
        data, x=100.0 * data.y[:, None] + spread[0], x_test=100.0 * data.y_test[:, None] + spread[1]
    )


def test_clusters_give_each_client_even_parts_of_few_clusters():
    data = blobs(360, 90)
    partition = split(data, Clusters(k=3, parts=4, per_client=2), 6, KEY)
    counts = class_counts(partition.train, data.y, 3)
    assert counts.sum(0).tolist() == [120] * 3
    assert set(counts.flatten().tolist()) <= {0, 30, 60}
    test_counts = class_counts(partition.test, data.y_test, 3)
    # A quarter of a cluster's 30 test points is 7 or 8.
    assert (test_counts - counts / 4).abs().max() <= 1


def test_clusters_leave_the_parts_of_nobody_out():
    data = blobs(360, 90)
    partition = split(data, Clusters(k=3, parts=4, per_client=1), 5, KEY)
    assert [len(rows) for rows in partition.train] == [30] * 5
    assert len(set(everything(partition.train))) == 150


def test_clusters_refuse_more_parts_than_there_are():
    with pytest.raises(DataError, match="3 \\* 4 = 12 parts"):
        split(blobs(360, 90), Clusters(k=3, parts=4, per_client=2), 7, KEY)


def test_clusters_of_fewer_points_than_parts_still_leave_no_client_empty():
    partition = split(blobs(12, 12), Clusters(k=3, parts=8, per_client=2), 12, KEY)
    assert all(len(rows) > 0 for rows in partition.train + partition.test)
    assert len(set(everything(partition.train))) == len(everything(partition.train))


def owned(**changes):
    owners = torch.tensor([4, 4, 4, 7, 7, 2, 2, 2, 2, 9])
    owners_test = torch.tensor([2, 4, 4, 7, 3])
    fields = {"owners": owners, "owners_test": owners_test}
    return labelled([0] * 10, [0] * 5, **(fields | changes))


def test_natural_clients_are_the_owners_with_examples_of_both_kinds():
    partition = split(owned(), Natural(), None, KEY)  # 9 has no test and 3 no training example
    assert [rows.tolist() for rows in partition.train] == [[5, 6, 7, 8], [0, 1, 2], [3, 4]]
    assert [rows.tolist() for rows in partition.test] == [[0], [1, 2], [3]]


def test_natural_leaves_out_small_owners():
    partition = split(owned(), Natural(min_examples=3), None, KEY)
    assert [rows.tolist() for rows in partition.train] == [[5, 6, 7, 8], [0, 1, 2]]


def test_natural_picks_a_smaller_number_by_key():
    picks = {split(owned(), "natural", 2, fold(s, "p")).fingerprint for s in range(30)}
    assert len(picks) == 3  # two of three owners


def test_natural_without_test_owners_cuts_the_test_set_by_label():
    data = owned(owners_test=None)
    partition = split(data, Natural(), None, KEY)
    assert [len(rows) for rows in partition.train] == [4, 3, 2, 1]
    assert everything(partition.test) == list(range(5))


def test_natural_errors_say_what_is_missing():
    with pytest.raises(DataError, match="does not say whose"):
        split(owned(owners=None, owners_test=None), Natural(), None, KEY)
    with pytest.raises(DataError, match="4 clients asked for, but toy has 3 owners"):
        split(owned(), Natural(), 4, KEY)
    with pytest.raises(DataError, match="has 0 owners with at least 50"):
        split(owned(), Natural(min_examples=50), None, KEY)


def test_validation_takes_the_asked_part_of_each_client():
    partition = split(balanced(1000, 100), Quantity(0.5), 10, KEY, validation=0.25)
    for train, held_out in zip(partition.train, partition.validation, strict=True):
        assert len(held_out) == (len(train) + len(held_out)) // 4
    without = split(balanced(1000, 100), Quantity(0.5), 10, KEY)
    joined = [
        torch.cat(p).sort().values for p in zip(partition.train, partition.validation, strict=True)
    ]
    assert all(a.equal(b) for a, b in zip(joined, without.train, strict=True))


def test_feature_shift_moves_inputs_and_not_examples():
    data = balanced(400, 100, x=torch.zeros(400, 500), x_test=torch.zeros(100, 500))
    plain = split(data, Dirichlet(0.5), 8, KEY)
    shifted = split(data, FeatureShift(0.3, Dirichlet(0.5)), 8, KEY)
    assert all(a.equal(b) for a, b in zip(plain.train, shifted.train, strict=True))
    assert shifted.shift.shape == (8, 500)
    assert shifted.shift.std().item() == pytest.approx(0.3, rel=0.05)
    assert plain.shift is None
    assert plain.fingerprint != shifted.fingerprint


def test_feature_shift_of_tokens_is_refused():
    data = balanced(20, 10, layout="tokens", x=torch.zeros(20, 3).long())
    with pytest.raises(DataError, match="cannot be shifted"):
        split(data, FeatureShift(0.1), 2, KEY)
    with pytest.raises(DataError, match="layout 'tokens'"):
        split(data, Clusters(k=2, parts=2, per_client=1), 2, KEY)


@pytest.mark.parametrize("scheme", [Dirichlet(0.5), Shards(2)])
def test_label_schemes_refuse_data_without_classes_and_name_those_that_work(scheme):
    data = balanced(20, 10, kind="labels", num_outputs=2)
    data = replace(data, y=torch.ones(20, 2), y_test=torch.ones(10, 2))
    with pytest.raises(DataError, match="Use iid, quantity or clusters"):
        split(data, scheme, 2, KEY)
    for works in (Iid(), Quantity(1.0), Clusters(k=2, parts=2, per_client=1)):
        assert len(split(data, works, 2, KEY).train) == 2


def test_too_many_clients_are_refused():
    with pytest.raises(DataError, match="has 20 training examples, too few for 21"):
        split(balanced(20, 30), Iid(), 21, KEY)
    with pytest.raises(DataError, match="has 10 test examples, too few for 11"):
        split(balanced(20, 10), Iid(), 11, KEY)
    with pytest.raises(ConfigError, match="needs a number of clients"):
        split(balanced(20, 10), Iid(), None, KEY)
    with pytest.raises(ConfigError, match="clients=0"):
        split(balanced(20, 10), Iid(), 0, KEY)


@pytest.mark.parametrize(
    "text",
    [
        "dirichlet(alpha=0)",
        "dirichlet(alpha=nan)",
        "dirichlet",
        "quantity(-1)",
        "shards(0)",
        "shards(1e999)",
        "dirichlet(0.1, alpha=0.2)",
        "clusters(k=0)",
        "natural(min_examples=0)",
        "feature_shift(sd=-1)",
        "dirichlett(0.1)",
    ],
)
def test_options_out_of_range_are_refused(text):
    with pytest.raises(ConfigError):
        split(balanced(20, 10), text, 2, KEY)


@pytest.mark.parametrize(
    "scheme",
    [
        Iid(),
        Dirichlet(0.2, balanced=True),
        Quantity(0.5),
        Shards(3),
        Clusters(4, 5, 1),
        Natural(7),
        FeatureShift(0.1, Quantity(0.5)),
    ],
)
def test_schemes_are_spelled_and_read_back(scheme):
    assert options.read(options.spell(scheme), PARTITIONS, "partition") == scheme


def test_fingerprint_is_the_hash_of_sizes_numbers_and_shift():
    parts = ((torch.tensor([0, 2]), torch.tensor([1])), (torch.tensor([0]),), ())
    shift = torch.tensor([[0.5]])
    words = [2, 2, 1, 0, 2, 1, 1, 1, 0, 0]  # shards, sizes, members; for each of the three parts
    content = np.array(words, "<i8").tobytes() + np.array([0.5], "<f8").tobytes()
    expected = hashlib.blake2b(content, digest_size=8).hexdigest()
    assert _fingerprint(parts, shift) == expected
    narrow = tuple(tuple(rows.int() for rows in shards) for shards in parts)
    assert _fingerprint(narrow, shift.double()) == expected


def test_describe_counts_classes_and_labels():
    rows = torch.tensor([0, 1, 2, 3]), torch.tensor([4])
    partition = Partition(
        rows, (torch.tensor([0]), torch.tensor([1])), (rows[1], rows[1][:0]), None, ""
    )
    first, second = describe(partition, labelled([0, 0, 1, 2, 2], [0, 1]))
    assert first == (0, 4, 1, 1, (2, 1, 1))
    assert second == (1, 1, 0, 1, (0, 0, 1))
    labels = torch.tensor([[1.0, 1], [0, 1], [0, 0], [0, 1], [1, 0]])
    data = labelled([0] * 5, [0, 0], kind="labels", num_outputs=2)
    assert describe(partition, replace(data, y=labels))[0].classes == (1, 3)
    assert describe(partition, replace(data, kind="values"))[0].classes == ()


def test_writers_of_mnist_become_clients(loaded):
    data = loaded("qmnist_writers")
    partition = split(data, "natural", None, KEY)
    assert len(partition.train) == 539
    sizes = zip(partition.train, partition.test, strict=True)
    assert all(len(test) == (len(train) + len(test)) // 5 for train, test in sizes)
