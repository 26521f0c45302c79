"""Client states: bounded memory, versions, disk."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.core import tree
from fedsieve.core.errors import ResumeError
from fedsieve.engine.store import ClientStore


class State(NamedTuple):
    weights: dict[str, torch.Tensor]
    rounds: int


def state(value, size=10):
    return State({"w": torch.full((size,), float(value))}, int(value))


def make_store(folder, ram_bytes=10**6):
    return ClientStore(folder, lambda client: state(-1 - client), ram_bytes)


@settings(max_examples=40, deadline=None)
@given(
    puts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000)), max_size=40),
    ram=st.integers(40, 400),
)
def test_a_store_holds_the_last_accepted_state_whatever_its_memory(puts, ram, tmp_path_factory):
    store = make_store(tmp_path_factory.mktemp("store"), ram)
    expected = {}
    for version, (client, value) in enumerate(puts):
        store.put(client, state(value), version)
        expected[client] = value
    for client in range(10):
        assert tree.equal(store.get(client), state(expected.get(client, -1 - client)))


def test_memory_stays_bounded_with_many_clients(tmp_path):
    """2,000 states of 40 kB in 1 MB: what is held never exceeds the limit by more than one."""
    store = make_store(tmp_path, ram_bytes=10**6)
    for client in range(2000):
        store.put(client, state(client, size=10_000), 1)
        assert store._hot_bytes <= 10**6 + 40_000
    assert sum(h.size for h in store._hot.values()) == store._hot_bytes
    assert tree.equal(store.get(3), state(3, size=10_000))


def test_restoring_goes_back_to_the_versions_of_the_checkpoint(tmp_path):
    store = make_store(tmp_path)
    store.put(1, state(10), 1)
    versions = store.flush()
    store.put(1, state(20), 2)
    store.flush()
    again = make_store(tmp_path)
    again.restore(versions)
    assert tree.equal(again.get(1), state(10))
    assert tree.equal(again.get(2), state(-3))


def test_files_no_checkpoint_needs_are_deleted(tmp_path):
    store = make_store(tmp_path)
    kept = []
    for version in range(1, 6):
        store.put(0, state(version), version)
        kept.append(store.flush())
    store.forget_all_but(kept[-2:])
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_a_missing_state_file_is_named(tmp_path):
    with pytest.raises(ResumeError, match="client 4 at round 9 is missing"):
        make_store(tmp_path).restore({4: 9})


def test_stateless_methods_write_nothing(tmp_path):
    store = ClientStore(tmp_path / "none", lambda client: (), 10)
    store.put(0, (), 1)
    assert store.get(0) == ()
    assert store.flush() == {}
    assert not (tmp_path / "none").exists()
