"""Masks that both ends hold: a bounded table, short messages, and ends that forget."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsieve
from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.method import Cohort, message_types
from fedsieve.engine import mask_cache as recalling
from fedsieve.engine.broadcast import KEPT_SCHEMAS, ClientCache
from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.executors.inline import Inline
from fedsieve.engine.executors.pool import Pool
from fedsieve.engine.mask_cache import recall, remember
from fedsieve.engine.requests import Refusal, Train
from fedsieve.methods.fediter_ht import FedIterHT
from fedsieve.wire.codec import encode
from fedsieve.wire.schema import schema_of
from fedsieve.wire.versions import VERSIONS
from small import SETTINGS, StopAfter, rounds_of, small_job, steady


def flat(number, size=80):
    return np.random.default_rng(number).random(size) < 0.3


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, VERSIONS - 1), st.integers(0, 70), max_size=5))
def test_what_is_remembered_is_recalled_bit_for_bit(sizes):
    masks = {mark: flat(mark, size) for mark, size in sizes.items()}
    found = recall(remember({}, masks), masks)
    assert list(found) == list(masks)
    assert all(found[mark].dtype == np.bool_ for mark in masks)
    assert all(np.array_equal(found[mark], masks[mark]) for mark in masks)


def test_the_newest_come_last_and_the_oldest_go_first(monkeypatch):
    monkeypatch.setattr(recalling, "LIMIT_BYTES", 35)  # three masks of 10 bytes
    first = remember({}, {1: flat(1), 2: flat(2)})
    second = remember(first, {3: flat(3), 1: flat(1)})
    third = remember(second, {4: flat(4)})
    assert [list(table) for table in (first, second, third)] == [[1, 2], [2, 3, 1], [3, 1, 4]]
    assert list(recall(third, [4, 2, 1])) == [4, 1]
    assert list(first) == [1, 2]  # a table is not changed
    assert remember({}, {5: flat(5, 400)}) == {}  # what never fits is never held


def test_the_table_holds_at_most_its_limit(monkeypatch):
    monkeypatch.setattr(recalling, "LIMIT_BYTES", 100)
    table, rng = {}, np.random.default_rng(0)
    for number in range(200):
        mask = flat(number, int(rng.integers(1, 300)))
        table = remember(table, {number: mask})
        assert sum(len(packed.bits) for packed in table.values()) <= 100
        assert np.array_equal(recall(table, [number])[number], mask)


def job_of(lr=0.01, **settings):
    shared = {"method": "fediter_ht", "ramp": 0, "optimiser": "adam", "cohort": 5, "rounds": 3}
    return small_job(lr=lr, **shared | settings)


def mask_bytes(played, direction):
    return sum(m.mask_bytes for m in played.messages if m.direction == direction)


def test_masks_that_stay_cost_their_names_alone_after_they_were_sent(tmp_path):
    rounds = rounds_of(job_of(lr=1e-7), tmp_path)  # no weight overtakes another
    first, second, third = rounds.play(rounds.start())
    assert mask_bytes(first, "down") > 5 * 40  # 88 of 888 positions: 52 bytes at the limit
    assert mask_bytes(first, "up") == 0  # coded against the broadcast's
    for played in (second, third):
        assert mask_bytes(played, "down") == mask_bytes(played, "up") == 0


def test_masks_that_change_cost_less_than_whole_ones(tmp_path):
    job = job_of()
    rounds = rounds_of(job, tmp_path)
    first, second, _ = rounds.play(rounds.start())
    down = job.method.broadcast(first.position.server, fold(0))
    assert 5 < mask_bytes(second, "down") < 0.7 * 5 * encode(down).mask_bytes
    assert mask_bytes(first, "up") < mask_bytes(first, "down")


class Forgetful:
    """An executor whose clients hold no masks in their second round; some of them, or all."""

    def __init__(self, execute, clients):
        self._execute, self._left = execute, set(clients)
        self.refusals = []

    def __call__(self, requests):
        for response in self._execute(map(self._forgotten, requests)):
            self.refusals += [response] if isinstance(response, Refusal) else []
            yield response

    def _forgotten(self, request):
        if isinstance(request, Train) and request.masks and request.client in self._left:
            self._left.discard(request.client)
            return request._replace(masks={})
        return request


@pytest.fixture(params=["inline", "pool"])
def executor(request):
    """Makes an executor of either kind for a job."""
    pools = []

    def make(job):
        runtime = ClientRuntime(job.method, job.federation)
        if request.param == "inline":
            return Inline(runtime)
        pools.append(Pool(runtime, 1, tuple))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("who", ["largest", "all"])
def test_a_client_that_lost_its_masks_gets_the_whole_message(executor, who, tmp_path):
    job = job_of()
    plain = rounds_of(job, tmp_path / "plain")
    expected = list(plain.play(plain.start()))
    order = sorted(range(5), key=job.federation.examples, reverse=True)
    lost = order if who == "all" else order[:1]
    rounds = rounds_of(job, tmp_path / "lost")
    rounds.execute = Forgetful(executor(job), lost)
    played = list(rounds.play(rounds.start()))
    assert sorted(r.client for r in rounds.execute.refusals) == sorted(lost)
    assert all("is not held here" in r.error for r in rounds.execute.refusals)
    for one, other in zip(played, expected, strict=True):
        assert tree.equal(one.position.server, other.position.server)
        assert one.row.failed == 0
        assert one.position.caches == other.position.caches
    assert played[0].messages == expected[0].messages
    assert played[2].messages == expected[2].messages
    again = list(played[1].messages)
    for message in expected[1].messages:
        if message.client not in lost or message.direction == "down":
            again.remove(message)  # the same as ever
    # Beside that, each who refused was sent the whole message, and answered that one.
    downs = [m for m in again if m.direction == "down"]
    assert [m.client for m in downs] == sorted(lost)
    assert sorted(m.client for m in again if m.direction == "up") == sorted(lost)
    first = {m.client: m for m in expected[1].messages if m.direction == "down"}
    assert all(m.total_bytes > first[m.client].total_bytes for m in downs)
    extra = played[1].row.down_bytes - expected[1].row.down_bytes
    assert extra == sum(m.total_bytes for m in downs)


class Presuming:
    """An executor whose clients take it that the server knows their schema."""

    def __init__(self, execute, mark):
        self._execute, self._mark, self.left = execute, mark, 5

    def __call__(self, requests):
        return self._execute(map(self._presumed, requests))

    def _presumed(self, request):
        if isinstance(request, Train) and self.left:
            self.left -= 1
            return request._replace(announced=frozenset({self._mark}))
        return request


def test_a_reply_the_server_cannot_read_is_asked_for_again(tmp_path):
    job = job_of(rounds=2)
    plain = rounds_of(job, tmp_path / "plain")
    expected = list(plain.play(plain.start()))
    down = job.method.broadcast(plain.start().server, fold(0))
    _, up_kind = message_types(job.method)
    mark = schema_of(up_kind(down.mask, down.weights, 1))[1]
    rounds = rounds_of(job, tmp_path / "lost")
    rounds.execute = Presuming(rounds.execute, mark)
    played = list(rounds.play(rounds.start()))
    assert rounds.execute.left == 0
    assert tree.equal(played[-1].position.server, expected[-1].position.server)
    assert (played[0].row.clients, played[0].row.failed) == (5, 0)
    ups = [m for m in played[0].messages if m.direction == "up"]
    assert sorted(m.client for m in ups) == sorted([*range(5)] * 2)  # bytes that existed
    assert played[1].messages == expected[1].messages


def test_a_client_that_refuses_a_whole_message_is_left_out(tmp_path, caplog):
    job = job_of(rounds=1)
    rounds = rounds_of(job, tmp_path)
    inner = rounds.execute

    def execute(requests):
        for request in requests:
            is_third = isinstance(request, Train) and request.client == 3
            yield from [Refusal(3, "never")] if is_third else inner([request])

    rounds.execute = execute
    (played,) = rounds.play(rounds.start())
    assert (played.row.clients, played.row.failed) == (4, 1)
    assert "client 3 left out: it refused a whole message" in caplog.text
    assert 3 not in played.position.caches
    assert [m.direction for m in played.messages if m.client == 3] == ["down", "down"]


def test_a_server_that_lost_its_masks_goes_on_with_the_same_model(tmp_path):
    job = job_of()
    plain = rounds_of(job, tmp_path / "plain")
    first, *expected = plain.play(plain.start())
    rounds = rounds_of(job, tmp_path / "lost")
    played = list(rounds.play(first.position._replace(masks={})))
    for one, other in zip(played, expected, strict=True):
        assert tree.equal(one.position.server, other.position.server)
        assert one.position.caches == other.position.caches
    assert mask_bytes(played[0], "down") > mask_bytes(expected[0], "down")
    assert played[1].messages == expected[1].messages


def test_without_room_for_masks_only_bytes_grow(tmp_path, monkeypatch):
    job = job_of()
    plain = rounds_of(job, tmp_path / "plain")
    expected = list(plain.play(plain.start()))
    monkeypatch.setattr(recalling, "LIMIT_BYTES", 0)
    rounds = rounds_of(job, tmp_path / "none")
    played = list(rounds.play(rounds.start()))
    assert tree.equal(played[-1].position.server, expected[-1].position.server)
    assert played[-1].position.masks == {}
    assert mask_bytes(played[1], "down") > mask_bytes(expected[1], "down")


def test_what_links_refer_to_is_in_the_table(tmp_path):
    job = job_of(cohort=3)
    rounds = rounds_of(job, tmp_path)
    for played in rounds.play(rounds.start()):
        position = played.position
        marks = {mark for client_cache in position.caches.values() for mark in client_cache.masks}
        assert marks <= set(position.masks)
        assert all(packed.size == 64 * 12 + 12 * 10 for packed in position.masks.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overheard(FedIterHT):
    """Everyone hears the broadcast."""

    heard: ClassVar[list[str]] = []

    def cohort(self, size, done):
        return Cohort(size, draw=done, reaches_all=True)

    def observe(self, down, state):
        self.heard.append(tree.digest(down))
        return state


def test_observers_read_what_is_coded_against_masks_they_hold(tmp_path):
    job = job_of(cohort=3, rounds=4)
    method = Overheard(task=job.method.task, lr=0.01)
    rounds = rounds_of(dataclasses.replace(job, method=method), tmp_path)
    Overheard.heard.clear()
    position, trained, saved = rounds.start(), set(), 0
    for played in rounds.play(position):
        down = method.broadcast(position.server, fold(0))
        assert Overheard.heard[-2:] == [tree.digest(down)] * 2
        cohort = {m.client for m in played.messages if m.direction == "up"}
        whole = encode(down).mask_bytes
        observers = [m for m in played.messages if m.client in trained - cohort]
        saved += sum(m.mask_bytes < whole for m in observers)
        position, trained = played.position, trained | cohort
    assert saved  # someone outside the cohort had been in it before


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_sends_the_same_bytes(workers, tmp_path):
    options = SETTINGS | {"method": "fediter_ht", "ramp": 0, "optimiser": "adam", "lr": 0.01}
    whole = fedsieve.run(**options, out=tmp_path / "whole")
    fedsieve.run(**options, out=tmp_path / "run", watcher=StopAfter(2))
    resumed = fedsieve.run(out=tmp_path / "run", resume=True, workers=workers)
    assert steady(resumed.rows) == steady(whole.rows)
    assert resumed.summary.model_hash == whole.summary.model_hash
    records = [
        [json.loads(line) for line in (tmp_path / name / "messages.jsonl").open()]
        for name in ("whole", "run")
    ]
    assert records[0] == records[1]
    assert any(m["round"] > 2 and m["mask_bytes"] < 40 for m in records[1])


def test_a_link_remembers_the_schemas_used_last():
    client_cache = ClientCache()
    for mark in range(3 * KEPT_SCHEMAS):
        client_cache = client_cache.told(down=[mark], up=[7]).told(down=[0])
    assert client_cache.down == (*range(2 * KEPT_SCHEMAS + 1, 3 * KEPT_SCHEMAS), 0)
    assert client_cache.up == (7,)


def test_a_schema_the_server_has_forgotten_is_announced_again_and_nobody_is_asked_twice(tmp_path):
    rounds = rounds_of(job_of(), tmp_path)
    play = rounds.play(rounds.start())
    first, second = next(play), next(play)
    rounds._decoder.schemas.clear()
    third = next(play)
    up = [
        [m.header_bytes for m in played.messages if m.direction == "up"]
        for played in (first, second, third)
    ]
    assert len(up[0]) == len(up[1]) == len(up[2]) == 5
    assert up[2] == up[0]
    assert max(up[1]) < min(up[0])
