"""The form of data that stays with its owners."""

import pytest

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.data.partitions.partition import alone
from fedsieve.data.sources.registry import is_remote, load


@pytest.mark.parametrize(
    ("spec", "shape", "kind"),
    [
        ("remote(owners=3, shape=[64], outputs=10)", (64,), "classes"),
        ("remote(owners=2, shape=[8, 6, 3], outputs=4)", (3, 8, 6), "classes"),
        ("remote(owners=2, shape=[5], outputs=1, task=values)", (5,), "values"),
        ("remote(owners=2, shape=[5], outputs=7, task=labels)", (5,), "labels"),
    ],
)
def test_it_has_the_shape_and_the_owners_it_says(spec, shape, kind):
    data = load(spec, None, fold(0))
    assert data.input_shape == shape
    assert data.kind == kind
    assert data.owners.tolist() == list(range(len(data.x)))


def test_its_old_name_is_still_read(caplog):
    data = load("elsewhere(owners=3, shape=[64], outputs=10)", None, fold(0))
    assert (data.name, data.input_shape) == ("remote", (64,))
    assert "called remote now" in caplog.text
    names = ["elsewhere(owners=1)", "remote(owners=1)", "remote", "digits", "npz:remote.npz"]
    assert [is_remote(name) for name in names] == [True, True, True, False, False]


def test_it_must_say_how_many_owners_there_are():
    with pytest.raises(ConfigError, match="owners"):
        load("remote(shape=[4], outputs=2)", None, fold(0))


def test_a_client_alone_holds_everything_and_may_hold_some_out():
    data = load("remote(owners=10, shape=[4], outputs=2)", None, fold(0))
    whole, parted = alone(data, 2, fold(1)), alone(data, 2, fold(1), validation=0.3)
    assert [len(shard) for shard in whole.train] == [0, 0, 10]
    assert whole.test[2].tolist() == list(range(10))
    assert len(parted.validation[2]) == 3
    together = [*parted.train[2].tolist(), *parted.validation[2].tolist()]
    assert sorted(together) == list(range(10))
