"""Mini-batches: each example as often as promised, in an order that the key fixes."""

from dataclasses import replace

import pytest
import torch

from data.toys import balanced
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Batches
from fedsieve.data.dataset import Dataset
from fedsieve.data.federation import Federation
from fedsieve.data.partitions.partition import split
from fedsieve.data.sources.synthetic import Synthetic

KEY = fold(0, "federation")


def federation(examples=53, clients=4, scheme="iid", data=None, validation=0.0, **options):
    data = balanced(examples, 20) if data is None else data
    settings = {"batch_size": 5, "epochs": 2} | options
    return Federation(data, split(data, scheme, clients, KEY, validation), **settings)


def numbers(batches):
    """Example numbers (the toy's inputs) of each mini-batch."""
    return [batch.x[:, 0].long().tolist() for batch in batches]


def flat(lists):
    return [number for part in lists for number in part]


def as_batches(client: Batches) -> Batches:
    return client


@pytest.mark.parametrize("scheme", ["iid", "quantity(0.3)"])
def test_an_epoch_holds_every_example_once(scheme):
    fed = federation(scheme=scheme)
    for client in range(fed.num_clients):
        batches = as_batches(fed.batches(client))
        parts = numbers(batches.epoch(KEY))
        assert sorted(flat(parts)) == fed.partition.train[client].tolist()
        assert [len(p) for p in parts[:-1]] == [5] * (len(parts) - 1)
        assert batches.examples == fed.examples(client) == len(flat(parts))


def test_targets_belong_to_their_inputs():
    fed = federation()
    for batch in fed.batches(1).epoch(KEY):
        assert batch.y.equal(fed.dataset.y[batch.x[:, 0].long()])


def test_work_is_epochs_in_different_orders():
    batches = federation(clients=2, epochs=3).batches(0)
    parts = numbers(batches.work(KEY))
    per_epoch = -(-batches.examples // 5)
    assert len(parts) == 3 * per_epoch
    orders = [flat(parts[e * per_epoch : (e + 1) * per_epoch]) for e in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[1] == flat(numbers(batches.epoch(fold(KEY, "epoch", 1))))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("settings", [{"epochs": 1}, {"epochs": 3}, {"steps": 4}])
def test_the_number_of_steps_is_known_before_the_work(drop_last, settings):
    fed = federation(scheme="quantity(0.3)", drop_last=drop_last, **settings)
    for client in range(fed.num_clients):
        batches = as_batches(fed.batches(client))
        assert batches.steps == len(list(batches.work(KEY)))


@pytest.mark.parametrize("steps", [1, 3, 17])
def test_steps_count_mini_batches_over_as_many_epochs_as_it_takes(steps):
    batches = federation(steps=steps).batches(0)
    parts = numbers(batches.work(KEY))
    assert len(parts) == steps
    first_epoch = numbers(batches.epoch(fold(KEY, "epoch", 0)))
    assert parts[: len(first_epoch)] == first_epoch[:steps]


def test_drop_last_leaves_out_the_short_batch_unless_it_is_the_only_one():
    fed = federation(examples=53, clients=4, drop_last=True)  # 13 or 14 examples for each
    assert [len(p) for p in numbers(fed.batches(0).epoch(KEY))] == [5, 5]
    small = federation(examples=12, clients=4, drop_last=True)
    assert [len(p) for p in numbers(small.batches(0).epoch(KEY))] == [3]
    exact = federation(examples=40, clients=4, drop_last=True)
    assert [len(p) for p in numbers(exact.batches(0).epoch(KEY))] == [5, 5]


def test_the_key_fixes_the_order():
    batches = federation(clients=1).batches(0)
    assert numbers(batches.work(KEY)) == numbers(batches.work(KEY))
    assert numbers(batches.work(KEY)) != numbers(batches.work(fold(KEY, 1)))


def test_draw_gives_distinct_examples_of_the_client():
    fed = federation()
    drawn = fed.batches(2).draw(KEY).x[:, 0].long().tolist()
    assert len(set(drawn)) == 5
    assert set(drawn) <= set(fed.partition.train[2].tolist())
    other = fed.batches(2).draw(fold(KEY, 1)).x[:, 0].long().tolist()
    assert drawn != other


def test_draw_repeats_examples_where_the_client_holds_less():
    fed = federation(examples=8)  # 2 for each
    drawn = fed.batches(0).draw(KEY).x[:, 0].long().tolist()
    assert len(drawn) == 5
    assert set(drawn) <= set(fed.partition.train[0].tolist())


def test_a_split_holds_the_same_share_back_every_time():
    data = federation(examples=53, clients=4).batches(1)
    (training, validation), again = data.split(0.25), data.split(0.25)
    assert validation.examples == round(0.25 * data.examples)
    parts = torch.cat([training.indices, validation.indices]).sort().values
    assert torch.equal(parts, data.indices.sort().values)
    assert torch.equal(validation.indices, again[1].indices)


def test_a_split_of_few_examples_leaves_one_on_each_side():
    data = federation(examples=20, clients=10).batches(0)
    assert data.examples == 2
    assert [part.examples for part in data.split(0.01)] == [1, 1]
    (one, _) = data.split(0.5)
    assert [part.examples for part in one.split(0.5)] == [1, 1]


def test_ordered_gives_stored_order_in_large_batches():
    fed = federation(examples=2000, clients=2)
    parts = numbers(fed.batches(0).ordered())
    assert [len(p) for p in parts] == [512, 488]
    assert flat(parts) == fed.partition.train[0].tolist()


def test_lazy_conversion_equals_the_direct_one():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (70, 6, 5, 3), generator=generator, dtype=torch.uint8)
    data = Dataset(
        name="pictures",
        x=pixels[:50],
        y=torch.arange(50) % 2,
        x_test=pixels[50:],
        y_test=torch.arange(20) % 2,
        kind="classes",
        num_outputs=2,
        layout="images",
        scale=(0.01, 0.02, 0.03),
        shift=(-1.0, 0.0, 1.0),
    )
    fed = federation(data=data, clients=3)
    direct = (pixels.float() * torch.tensor(data.scale) + torch.tensor(data.shift)).permute(
        0, 3, 1, 2
    )
    lazy = torch.cat([batch.x for batch in fed.batches(1).ordered()])
    assert lazy.equal(direct[:50][fed.partition.train[1]])
    tested = torch.cat([batch.x for batch in fed.test_batches(fed.test(1), size=3)])
    assert tested.equal(direct[50:][fed.test(1)])


def test_test_batches_hold_the_given_examples_in_order():
    fed = federation()
    indices = torch.tensor([7, 3, 11])
    first, second = fed.test_batches(indices, size=2)
    assert first.x[:, 0].tolist() == [7, 3]
    assert second.x[:, 0].tolist() == [11]
    assert first.y.tolist() == fed.dataset.y_test[[7, 3]].tolist()
    assert list(fed.test_batches(indices[:0])) == []


def test_validation_examples_are_not_trained_on():
    fed = federation(examples=100, validation=0.2)
    for client in range(fed.num_clients):
        held_out = fed.validation(client)
        assert len(held_out) == 5
        assert numbers(fed.train_batches(held_out)) == [held_out.tolist()]
        assert not set(held_out.tolist()) & set(flat(numbers(fed.batches(client).epoch(KEY))))


def pooled(fed):
    return replace(fed, partition=replace(fed.partition, is_pooled=True))


def test_the_pooled_client_holds_all_training_shards_and_no_test_shard_moves():
    fed = federation(examples=100, validation=0.2)
    pool = pooled(fed)
    assert (pool.num_clients, pool.num_shards) == (1, 4)
    assert sorted(flat(numbers(pool.batches(0).epoch(KEY)))) == sorted(
        flat(rows.tolist() for rows in fed.partition.train)
    )
    assert pool.examples(0) == sum(fed.examples(c) for c in range(4))
    assert all(pool.test(s).equal(fed.test(s)) for s in range(4))
    assert pool.batch_size == fed.batch_size


def test_a_clients_shift_is_added_to_its_training_inputs_pooled_or_not():
    fed = federation(examples=40, scheme="feature_shift(10.0)", validation=0.3)
    shift = fed.partition.shift
    for client in range(fed.num_clients):
        rows = fed.partition.train[client]
        (batch,) = fed.batches(client).ordered()
        assert batch.x.equal(fed.dataset.x[rows] + shift[client])
        (held_out,) = fed.train_batches(fed.validation(client))
        assert held_out.x.equal(fed.dataset.x[fed.validation(client)] + shift[client])
    (pool,) = pooled(fed).batches(0).ordered()
    parts = {int(r): shift[c] for c, rows in enumerate(fed.partition.train) for r in rows}
    assert pool.x.equal(torch.stack([fed.dataset.x[r] + parts[r] for r in sorted(parts)]))
    (tested,) = fed.test_batches(fed.test(0))
    assert tested.x.equal(fed.dataset.x_test[fed.test(0)])


@pytest.mark.parametrize("task", ["values", "labels", "classes"])
def test_planted_targets_are_those_of_the_shifted_inputs(task):
    data = Synthetic(task=task, rows=60, test_rows=10, features=20, classes=3, density=0.2).draw(
        KEY
    )
    fed = federation(data=data, scheme="feature_shift(2.0)")
    noise = data.scores - data.x @ data.truth
    for client in range(fed.num_clients):
        (batch,) = fed.batches(client).ordered()
        scores = batch.x @ data.truth + noise[fed.partition.train[client]]
        torch.testing.assert_close(batch.y, data.label(scores), atol=1e-4, rtol=1e-4)
    unshifted = federation(data=data, scheme="feature_shift(0.0)")
    (batch,) = unshifted.batches(0).ordered()
    assert batch.y.equal(data.y[unshifted.partition.train[0]])


def test_mini_batches_own_their_memory():
    fed = federation()
    before = fed.dataset.x.clone()
    for batch in fed.batches(0).work(KEY):
        batch.x.zero_()
    assert fed.dataset.x.equal(before)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"epochs": 0}, {"steps": 0}])
def test_work_that_cannot_be_done_is_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=0"):
        federation(**wrong)


def test_replacing_scale_changes_what_the_model_sees():
    fed = federation(data=replace(balanced(20, 10), scale=2.0))
    (batch,) = fed.batches(0).ordered()
    assert batch.x[:, 0].tolist() == [2.0 * i for i in fed.partition.train[0].tolist()]
