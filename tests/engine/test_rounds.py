"""The round loop: cohorts, failures, observers, announcements, bytes."""

import dataclasses
import os
from typing import NamedTuple

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError, RoundError
from fedsieve.core.keys import fold
from fedsieve.core.message import Count
from fedsieve.core.method import Cohort, Method, Round, message_types
from fedsieve.engine import broadcast
from fedsieve.engine.broadcast import BroadcastEncoder, ClientCache
from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.evaluate import evaluate
from fedsieve.engine.executors.pool import Pool
from fedsieve.engine.requests import Failure, Reply, Train
from fedsieve.jobs import api
from fedsieve.jobs.api import Watcher
from fedsieve.methods import fedavg, pfnm, vardrop
from fedsieve.methods.fedavg import FedAvg
from fedsieve.methods.local_only import LocalOnly, Nothing, State
from fedsieve.wire.codec import Decoder, encode
from fedsieve.wire.compressors import EXACT
from small import SETTINGS, rounds_of, small_job, steady


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faulty(FedAvg):
    """Client data of `bad_size` examples meets an accident."""

    bad_size: int = -1
    accident: str = "raise"

    def client_update(self, down, state, data, key):
        up, state, metrics = super().client_update(down, state, data, key)
        if data.examples != self.bad_size:
            return up, state, metrics
        if self.accident == "raise":
            raise ValueError("sensor unplugged")
        if self.accident == "nan":
            name = next(iter(up.weights))
            spoilt = up.weights | {name: up.weights[name] * float("nan")}
            return up._replace(weights=spoilt), state, metrics
        os._exit(9)


def faulty_job(accident, **settings):
    job = small_job(method="fedavg", cohort=5, **settings)
    sizes = [job.federation.examples(c) for c in range(5)]
    bad = next(c for c in range(5) if sizes.count(sizes[c]) == 1)
    method = Faulty(task=job.method.task, lr=0.1, bad_size=sizes[bad], accident=accident)
    return dataclasses.replace(job, method=method), bad


@pytest.mark.parametrize("accident", ["raise", "nan"])
def test_a_failed_client_is_as_if_absent_and_counted(accident, tmp_path, caplog):
    job, bad = faulty_job(accident, rounds=1)
    rounds = rounds_of(job, tmp_path)
    start = rounds.start()
    (played,) = rounds.play(start)
    assert (played.row.clients, played.row.failed) == (4, 1)
    assert f"client {bad} left out" in caplog.text
    method = job.method
    replies = []
    for client in set(range(5)) - {bad}:
        down = method.broadcast(start.server, fold(0))
        data = job.federation.batches(client)
        replies.append(method.client_update(down, (), data, fold(7, "client", 1, client))[0])
    without = method.server_update(start.server, Round(replies), fold(0))
    assert tree.equal(played.position.server, without)
    assert bad not in played.position.caches
    arrived = {m.client for m in played.messages if m.direction == "up"}
    assert arrived == set(range(5)) - (
        {bad} if accident == "raise" else set()
    )  # bytes that existed


@pytest.mark.parametrize(
    ("method", "kind", "field"), [("pfnm", pfnm.Up, "client"), ("vardrop", vardrop.Up, "device")]
)
def test_a_reply_signed_by_another_client_is_left_out(method, kind, field, tmp_path, caplog):
    rounds = rounds_of(small_job(method=method, preset="paper", rounds=1, cohort=5), tmp_path)
    inner = rounds.execute

    def execute(requests):
        for response in inner(requests):
            if isinstance(response, Reply) and response.client == 2:
                up = Decoder().decode(response.up.data, kind)
                yield response._replace(up=encode(up._replace(**{field: 3})))
            else:
                yield response

    rounds.execute = execute
    (played,) = rounds.play(rounds.start())
    assert (played.row.clients, played.row.lost) == (4, [2])
    assert f"client 2 left out: its message does not fit: {field}: it is signed by" in caplog.text


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "vardrop", "pfnm", "feddrop"])
def test_a_reply_that_declares_more_than_was_asked_for_is_left_out_unread(method, tmp_path, caplog):
    """Replies to nothing known, as in the first round of pfnm, are bounded by the model."""
    own = {"warmup": 1} if method == "vardrop" else {}  # there is no mask to recall in it
    rounds = rounds_of(small_job(method=method, rounds=1, cohort=5, **own), tmp_path)
    inner = rounds.execute
    _, kind = message_types(rounds.method)

    def execute(requests):
        for response in inner(requests):
            if isinstance(response, Reply) and response.client == 2:
                up = Decoder().decode(response.up.data, kind)
                huge = {"weights": {"w": torch.zeros(1).expand(20_000, 50)}, "mask": {}}
                changed = {n: v for n, v in huge.items() if n in up._fields}
                yield response._replace(up=encode(up._replace(**changed)))
            else:
                yield response

    rounds.execute = execute
    (played,) = rounds.play(rounds.start())
    assert (played.row.clients, played.row.lost) == (4, [2])
    assert "client 2 left out: its message cannot be read: " in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: {n: w for n, w in weights.items() if n != "fc1.weight"},
        lambda weights: weights | {"more": torch.zeros(1)},
        lambda weights: weights | {"fc1.weight": torch.zeros(1, 1)},
        lambda weights: weights | {"fc1.weight": weights["fc1.weight"].double()},
        lambda weights: {},
    ],
    ids=["missing", "further", "another shape", "another type", "nothing"],
)
def test_a_client_with_other_tensors_than_it_was_sent_is_left_out(change, tmp_path):
    rounds = rounds_of(small_job(method="fedavg", rounds=1, cohort=5), tmp_path)
    inner = rounds.execute

    def execute(requests):
        for response in inner(requests):
            if isinstance(response, Reply) and response.client == 2:
                up = Decoder().decode(response.up.data, fedavg.Up)
                forged = up._replace(weights=change(up.weights))
                yield response._replace(up=encode(forged))
            else:
                yield response

    rounds.execute = execute
    (played,) = rounds.play(rounds.start())
    assert (played.row.clients, played.row.lost) == (4, [2])
    without = rounds_of(small_job(method="fedavg", rounds=1, cohort=5), tmp_path / "without")
    execute_all = without.execute
    without.execute = lambda requests: execute_all(r for r in requests if r.client != 2)
    (expected,) = without.play(without.start())
    assert tree.equal(played.position.server, expected.position.server)


def test_a_dead_worker_costs_one_client_and_is_replaced(tmp_path):
    job, _ = faulty_job("die", rounds=2)
    rounds = rounds_of(job, tmp_path)
    pool = Pool(ClientRuntime(job.method, job.federation), 2, tuple)
    rounds.execute = pool
    try:
        rows = [played.row for played in rounds.play(rounds.start())]
    finally:
        pool.close()
    assert [(r.clients, r.failed) for r in rows] == [(4, 1), (4, 1)]


def test_too_few_replies_stop_the_run_and_say_why(tmp_path):
    job, _ = faulty_job("raise")
    rounds = rounds_of(job, tmp_path, min_replies=5)
    with pytest.raises(RoundError, match=r"4 of 5 .* min_replies=5(.|\n)*sensor unplugged"):
        list(rounds.play(rounds.start()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held(FedAvg):
    size: int | None = 2

    def cohort(self, size, done):
        return Cohort(self.size, draw=done // 3)


def test_a_cohort_is_held_as_long_as_its_draw(tmp_path):
    job = small_job(rounds=6, clients=20)
    rounds = rounds_of(dataclasses.replace(job, method=Held(task=job.method.task)), tmp_path)
    cohorts = [tuple(sorted({m.client for m in p.messages})) for p in rounds.play(rounds.start())]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert cohorts[3] == cohorts[4] == cohorts[5]
    assert cohorts[0] != cohorts[3]
    assert all(len(c) == 2 for c in cohorts)


def test_a_method_cannot_ask_for_more_clients_than_there_are(tmp_path):
    job = small_job(rounds=1)
    method = Held(task=job.method.task, size=6)
    rounds = rounds_of(dataclasses.replace(job, method=method), tmp_path)
    with pytest.raises(ConfigError, match="cohort of 6, there are 5"):
        list(rounds.play(rounds.start()))


def test_a_method_may_ask_for_all_clients(tmp_path):
    job = small_job(rounds=2, cohort=3)
    method = Held(task=job.method.task, size=None)
    rounds = rounds_of(dataclasses.replace(job, method=method), tmp_path)
    assert [p.row.clients for p in rounds.play(rounds.start())] == [5, 5]


class Tick(NamedTuple):
    number: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listening(LocalOnly, Method[Nothing, State, Tick, Nothing]):
    """Everyone hears the broadcast: those outside the cohort count it in `rounds`."""

    def cohort(self, size, done):
        return Cohort(size, draw=done, reaches_all=True)

    def broadcast(self, server, key):
        return Tick(3)

    def observe(self, down, state):
        return state._replace(rounds=state.rounds + 100 * down.number)


def test_clients_outside_the_cohort_observe_and_their_bytes_count(tmp_path):
    job = small_job(method="local_only", rounds=2)
    rounds = rounds_of(dataclasses.replace(job, method=Listening(task=job.method.task)), tmp_path)
    trained = [0] * 5
    for played in rounds.play(rounds.start()):
        assert sorted(m.client for m in played.messages if m.direction == "down") == [0, 1, 2, 3, 4]
        for message in played.messages:
            trained[message.client] += message.direction == "up"
    for client in range(5):
        assert rounds.stores.states.get(client).rounds == trained[client] + 300 * (
            2 - trained[client]
        )


def test_a_schema_is_announced_once_per_client(tmp_path):
    job = small_job(rounds=3, cohort=5)
    rounds = rounds_of(job, tmp_path)
    first, second, third = list(rounds.play(rounds.start()))
    before = {(m.client, m.direction): m.header_bytes for m in first.messages}
    after = {(m.client, m.direction): m.header_bytes for m in second.messages}
    weights = second.position.server.weights
    for (client, direction), header in after.items():
        announcing = before[client, direction]
        assert announcing - header > sum(len(name) for name in weights)  # names travel once
    assert {(m.client, m.direction): m.header_bytes for m in third.messages} == after


def test_equal_broadcasts_are_encoded_once():
    job = small_job()
    server = job.method.init_server(fold(0, "init"))
    office = BroadcastEncoder(job.method, server, fold(0, "broadcast"), EXACT, {})
    broadcasts = [office.encoded(client, ClientCache()) for client in range(3)]
    assert broadcasts[0] is broadcasts[1] is broadcasts[2]
    told = office.encoded(3, ClientCache(down=broadcasts[0].digest))
    assert told.schema
    assert len(told.payload.data) < len(broadcasts[0].payload.data)


def test_a_mask_is_coded_once_against_one_that_all_hold(tmp_path, monkeypatch):
    """Devices of vardrop have masks of their own, and the union they were all sent before."""
    job = small_job(method="vardrop", preset="paper", log_variance=-4.0, lr=0.01, variance_lr=0.5)
    rounds = rounds_of(job, tmp_path, eval_every=10**9)
    calls = []
    monkeypatch.setattr(broadcast, "encode", lambda *args: calls.append(args) or encode(*args))
    for played in rounds.play(rounds.start()):
        assert len(calls) == 1
        calls.clear()
        own = {tuple(client_cache.masks) for client_cache in played.position.caches.values()}
        assert len(own) > 1 or played.row.round == 1  # all start from the same mask
        lengths = {m.total_bytes for m in played.messages if m.direction == "down"}
        assert len(lengths) == 1


def test_parts_of_a_message_add_up_and_paper_bytes_are_four_per_value(tmp_path):
    job = small_job(rounds=1)
    rounds = rounds_of(job, tmp_path)
    (played,) = rounds.play(rounds.start())
    values = sum(v.numel() for v in played.position.server.weights.values())
    for m in played.messages:
        assert m.total_bytes == m.header_bytes + m.mask_bytes + m.value_bytes
        assert m.paper_bytes == 4 * values
        assert 3 * values < m.value_bytes <= 4 * values + 1  # mantissas do not compress
    up = [m for m in played.messages if m.direction == "up"]
    assert played.row.up_bytes == sum(m.total_bytes for m in up)
    assert played.row.up_paper_bytes == 3 * 4 * values


def test_macs_of_a_round_are_three_passes_over_the_data(tmp_path):
    job = small_job(rounds=1, epochs=2)
    rounds = rounds_of(job, tmp_path)
    (played,) = rounds.play(rounds.start())
    cohort = {m.client for m in played.messages}
    examples = sum(job.federation.examples(c) for c in cohort)
    macs = 64 * 12 + 12 * 10
    assert played.row.macs_dense == played.row.macs_ideal == 3 * macs * examples * 2


def test_scores_are_those_of_a_direct_evaluation(tmp_path):
    job = small_job(rounds=1)
    rounds = rounds_of(job, tmp_path)
    (played,) = rounds.play(rounds.start())
    data, model = job.dataset, played.position.server.weights
    outputs = job.method.task.predict(model, data.inputs(data.x_test))
    right = outputs.argmax(1) == data.y_test
    union = torch.cat(list(job.partition.test))
    assert played.row.global_accuracy == pytest.approx(float(right[union].float().mean()))
    own = [float(right[shard].float().mean()) for shard in job.partition.test]
    assert played.row.local_accuracy == pytest.approx(sum(own) / 5)
    loss = torch.nn.functional.cross_entropy(outputs[union], data.y_test[union])
    assert played.row.loss == pytest.approx(float(loss), rel=1e-5)


def test_a_site_reports_a_malformed_broadcast_as_the_clients_failure():
    job = small_job()
    runtime = ClientRuntime(job.method, job.federation)
    down = job.method.broadcast(job.method.init_server(fold(0, "init")), fold(0))
    data = bytearray(encode(down).data)
    data[len(data) // 2] ^= 1
    answer = runtime.handle(Train(0, bytes(data), b"", frozenset(), {}, (), {}, fold(0), 1))
    assert isinstance(answer, Failure)
    assert "WireError" in answer.error


@pytest.mark.parametrize("workers", [1, 2])
def test_enough_replies_end_the_waiting_and_the_executor_serves_the_next_round(workers):
    """One spare client: two of three count, and what a worker left behind is not read later."""
    job = small_job(method="fedavg", cohort=2, rounds=4, workers=workers)
    first = api.play(job, None, resume=False, watcher=Watcher(), spare=1)
    assert [row.clients for row in first.rows] == [2] * 4
    assert all(len(row.late) == row.spare == 1 for row in first.rows)
    record = {row.round: row for row in first.rows}
    again = api.play(job, None, resume=False, watcher=Watcher(), record=record)
    assert again.summary.model_hash == first.summary.model_hash
    assert [row.late for row in again.rows] == [row.late for row in first.rows]


def test_a_run_is_replayed_from_its_folder_with_the_clients_that_failed(tmp_path, monkeypatch):
    train = ClientRuntime.train

    def fails(self, request):
        if request.round == 2 and request.client == 1:
            raise ValueError("on purpose")
        return train(self, request)

    settings = SETTINGS | {"method": "local_only", "clients": 3, "cohort": 3}
    with monkeypatch.context() as patch:
        patch.setattr(ClientRuntime, "train", fails)
        first = fedsieve.run(**settings, out=tmp_path / "run")
    assert [row.lost for row in first.rows] == [[], [1], [], []]
    again = fedsieve.run(replay=tmp_path / "run")
    assert again.summary.model_hash == first.summary.model_hash
    assert steady(again.rows) == steady(first.rows)
    assert first.summary.model_hash != fedsieve.run(**settings).summary.model_hash


def test_scores_do_not_depend_on_who_has_answered_first(tmp_path):
    job = small_job(method="local_only", rounds=1)
    rounds = rounds_of(job, tmp_path)
    (played,) = rounds.play(rounds.start())

    def backwards(requests):
        yield from reversed(list(rounds.execute(requests)))

    given = job.method, played.position.server, rounds.stores.states, job.federation
    forth, back = evaluate(*given, rounds.execute), evaluate(*given, backwards)
    assert list(back.shares) == list(forth.shares) == sorted(forth.shares)
    assert back == forth
