"""Server and node: what is lost, late, stale, forged or repeated leaves no trace in the run."""

import json
import logging
import math
import time
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Error, Message

from fedsieve.core.errors import ConfigError, RoundError, WireError
from fedsieve.core.keys import fold
from fedsieve.deploy import dispatch, open_calls
from fedsieve.deploy.dispatch import Remote
from fedsieve.deploy.envelope import Answer, Call, Hello, Ready, UnknownJob, peek, seal
from fedsieve.deploy.flower.private import ErrorCode, NodeInfo
from fedsieve.deploy.flower.transport import GridTransport
from fedsieve.deploy.node import Node, claimed, open_job
from fedsieve.deploy.node_server import NodeServer
from fedsieve.deploy.open_calls import LostError
from fedsieve.deploy.server import hello_of, receipts
from fedsieve.deploy.signature import fresh_key
from fedsieve.engine import blob
from fedsieve.engine.request_encoding import Encoded, encode
from fedsieve.engine.requests import Failure, Reply, Share, Train
from fedsieve.engine.run_folder import RunFolder
from fedsieve.engine.store import Receipt
from fedsieve.jobs import api
from fedsieve.jobs.api import Watcher
from fedsieve.jobs.config import make, to_toml
from fedsieve.jobs.execution import Engine
from fedsieve.jobs.job import build
from fedsieve.metrics.macs import Macs
from grid import LocalGrid, kind_of, node_servers, response_of, terms_of, with_response
from small import small_job, steady


class Deployed:
    """A job on nodes in this process; `change(client, call, envelope)` may tamper with answers."""

    def __init__(self, job, folder, change=None, transport=GridTransport, **terms):
        self.job, self.folder, self.terms, self.transport = job, folder, terms, transport
        keys, nodes = terms.pop("keys", None), terms.pop("servers", None)
        if keys:
            self.terms |= {"key": keys["server"], "nodes": {c: keys[c].public for c in range(3)}}
        server = keys["server"].public if keys else None
        self.servers = nodes or node_servers(job, folder / "nodes", keys, server)
        self.grid = LocalGrid(
            {100 + client: self.answering(client, change) for client in self.servers}
        )

    def answering(self, client, change):
        def answer(envelope):
            good = self.servers[client].answer(envelope)
            return change(client, peek(envelope, Call), good) if change else good

        return answer

    def play(self, out=None, *, resume=False, **changes):
        @contextmanager
        def nodes(job, states):
            terms = terms_of(job, **self.terms)
            yield Engine(receipts(states), Remote(self.transport(lambda: self.grid), terms))

        folder = RunFolder(out) if out else None
        return api.play(
            self.job, folder, resume=resume, watcher=Watcher(), open_engine=nodes, **changes
        )


def absent(job, rows):
    """The same job in this process, where whoever was lost or late did not take part."""
    record = {row.round: row for row in rows}
    return api.play(job, None, resume=False, watcher=Watcher(), record=record)


def stateful(**more):
    return small_job(method="local_only", **{"clients": 3, "cohort": 3, "rounds": 4} | more)


def is_training(call, number):
    return kind_of(call.work) == "Train" and call.round == number


def keys():
    return {name: fresh_key() for name in ("server", 0, 1, 2)}


def test_a_lost_reply_leaves_the_state_of_a_client_that_was_absent(tmp_path):
    def change(client, call, good):
        return None if client == 1 and is_training(call, 2) else good

    job = stateful()
    there = Deployed(job, tmp_path, change, seconds=0.5).play()
    assert [row.lost for row in there.rows] == [[], [1], [], []]
    here = absent(job, there.rows)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows)[2:] == steady(here.rows)[2:]
    assert here.summary.model_hash != absent(job, []).summary.model_hash


def changed(good, change):
    """The answer in an envelope with another response."""
    answer = peek(good, Answer)
    return with_response(answer, change(response_of(answer)))


FORGERIES = {
    "garbage": lambda good, all_keys: b"\x93\x01garbage",
    "empty": lambda good, all_keys: b"x",
    "in another's name": lambda good, all_keys: seal(
        msgspec.structs.replace(peek(good, Answer), client=0), all_keys[1]
    ),
    "with a key of its own": lambda good, all_keys: seal(peek(good, Answer), fresh_key()),
    "unsigned": lambda good, all_keys: seal(peek(good, Answer), None),
    "to another call": lambda good, all_keys: seal(
        msgspec.structs.replace(peek(good, Answer), call=bytes(16)), all_keys[1]
    ),
    "counted wrong": lambda good, all_keys: seal(
        changed(good, lambda r: r._replace(up=r.up._replace(value_bytes=r.up.value_bytes + 1))),
        all_keys[1],
    ),
    "too large": lambda good, all_keys: good + bytes(300_000),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_or_malformed_answer_is_a_failure_of_its_sender_alone(forgery, tmp_path):
    signing = keys()

    def change(client, call, good):
        is_bad = client == 1 and is_training(call, 2)
        return FORGERIES[forgery](good, signing) if is_bad else good

    job = stateful(rounds=3)
    there = Deployed(job, tmp_path, change, keys=signing, max_bytes=200_000).play()
    assert [row.lost for row in there.rows] == [[], [1], []]
    assert there.summary.model_hash == absent(job, there.rows).summary.model_hash


def test_an_old_answer_sent_again_does_not_count(tmp_path):
    kept = {}

    def change(client, call, good):
        if client == 1 and is_training(call, 1):
            kept["old"] = good
        return kept["old"] if client == 1 and is_training(call, 2) else good

    job = stateful(rounds=3)
    there = Deployed(job, tmp_path, change, keys=keys()).play()
    assert [row.lost for row in there.rows] == [[], [1], []]
    assert there.summary.model_hash == absent(job, there.rows).summary.model_hash


class Leaky(GridTransport):
    """Loses the connection with everything under way on every third pull."""

    pulls = 0

    def pull(self, messages):
        self.pulls += 1
        if self.pulls % 3 == 0:
            self._grid.replies.clear()
            raise LostError("gone")
        return super().pull(messages)


def test_calls_that_go_out_again_count_once(tmp_path):
    job = stateful()
    there = Deployed(job, tmp_path, transport=Leaky).play()
    assert there.summary.failed == 0
    here = absent(job, [])
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)


def test_a_server_that_starts_again_finds_the_states_of_its_checkpoint(tmp_path):
    job = small_job(method="local_only", clients=3, cohort=2, rounds=5, checkpoint_every=1)
    first = Deployed(job, tmp_path)
    seen = []

    def stop(client, call, good):
        if is_training(call, 4):
            seen.append(client)
            if len(seen) == 2:
                raise KeyboardInterrupt
        return good

    broken = Deployed(job, tmp_path, stop, servers=first.servers)
    cut = broken.play(tmp_path / "run")
    assert cut.summary.status == "after round 3 of 5"
    whole = Deployed(job, tmp_path, servers=first.servers, session=2).play(
        tmp_path / "run", resume=True
    )
    assert whole.summary.failed == 0
    assert whole.summary.model_hash == absent(job, []).summary.model_hash


def train_call(number, version=0, session=1, client=1):
    receipt = Receipt(version, torch.zeros(16, dtype=torch.uint8))
    work = Train(client, b"", b"", frozenset(), {}, receipt, {}, fold(5), number)
    return Call("0" * 32, session, number, client, encode(work))


@pytest.fixture
def node_server(tmp_path):
    job = stateful()
    server = node_servers(job, tmp_path)[1]
    hello = Call("0" * 32, 1, 0, -1, terms_of(job).hello)
    server.answer(seal(hello, None))
    return server


def result_of(node_server, call):
    answer = peek(node_server.answer(seal(call, None)), Answer)
    return response_of(answer) if isinstance(answer.result, Encoded) else answer.result


def test_a_round_that_is_over_is_not_trained_again(node_server):
    assert isinstance(result_of(node_server, train_call(3)), Reply)
    assert "round 2 is over" in result_of(node_server, train_call(2)).error
    back = result_of(node_server, train_call(2, session=2))
    assert isinstance(back, Reply)  # the server went back


def test_a_call_that_is_repeated_gives_the_same_state(node_server):
    first, second = (result_of(node_server, train_call(1)) for _ in range(2))
    assert first.state.digest.equal(second.state.digest)


def test_the_server_names_the_version_and_others_are_dropped(node_server, tmp_path):
    one = result_of(node_server, train_call(1))
    lost = result_of(node_server, train_call(2, version=1))
    again = result_of(node_server, train_call(3, version=1))
    assert not one.state.digest.equal(lost.state.digest)
    assert again.state.digest.equal(lost.state.digest)  # both from version 1, same key
    kept = sorted(path.stem for path in (tmp_path / "1").glob("jobs/*/states/*"))
    assert kept == ["0000001-0000001", "0000001-0000003"]


def test_a_state_that_is_gone_is_not_replaced_by_a_fresh_one(node_server, tmp_path):
    result_of(node_server, train_call(1))
    for path in (tmp_path / "1").glob("jobs/*/states/*"):
        path.unlink()
    assert "missing" in result_of(node_server, train_call(2, version=1)).error


def test_calls_for_others_and_of_unknown_jobs_are_refused(node_server):
    assert "for client 2" in result_of(node_server, train_call(1, client=2)).error
    stranger = msgspec.structs.replace(train_call(1), job="f" * 32)
    assert result_of(node_server, stranger) == UnknownJob()
    outside = msgspec.structs.replace(train_call(1), job="../../../etc")
    assert "hexadecimal" in result_of(node_server, outside).error


def test_a_node_with_keys_hears_only_the_server(tmp_path):
    signing = keys()
    node_server = NodeServer(
        1, tmp_path, lambda hello: pytest.fail("opened"), signing[1], signing["server"].public
    )
    for key in (None, signing[2], fresh_key()):
        with pytest.raises(WireError, match="signature"):
            node_server.answer(seal(train_call(1), key))


def test_too_few_nodes_end_the_run_and_keep_what_was_done(tmp_path):
    def change(client, call, good):
        return None if client and is_training(call, 3) else good

    job = stateful(min_replies=2, checkpoint_every=1)
    deployed = Deployed(job, tmp_path, change, seconds=0.5)
    with pytest.raises(RoundError, match="1 of 3 clients"):
        deployed.play(tmp_path / "run")
    assert len(RunFolder(tmp_path / "run").records.rows()) == 2


def test_the_first_to_answer_count_and_the_record_replays(tmp_path):
    def change(client, call, good):
        return None if client == 0 and is_training(call, 2) else good

    job = stateful(cohort=2)
    there = Deployed(job, tmp_path, change, seconds=30).play(spare=1)
    assert [row.clients for row in there.rows] == [2] * 4
    assert there.rows[1].late == [0]
    here = absent(job, there.rows)
    assert there.summary.model_hash == here.summary.model_hash
    assert [row.late for row in here.rows] == [row.late for row in there.rows]


def test_owners_data_that_the_server_never_sees_gives_the_bits_of_pooled_files(tmp_path):
    """Each owner's rows in a file of its own, against one file with all rows and their owners."""
    generator = np.random.default_rng(0)
    x, x_test = (generator.normal(size=(n, 6)).astype(np.float32) for n in (60, 30))
    y, y_test = (np.abs(a[:, 0] * 2).astype(np.int64).clip(0, 2) for a in (x, x_test))
    owners, owners_test = np.arange(60) % 3, np.arange(30) % 3
    everything = {"x": x, "y": y, "x_test": x_test, "y_test": y_test}
    np.savez(tmp_path / "all.npz", **everything, owners=owners, owners_test=owners_test)
    common = {"model": "mlp(hidden=[5])", "rounds": 3, "batch_size": 7, "method": "fedavg"}
    here = api.run(dataset=f"npz:{tmp_path}/all.npz", partition="natural", **common)
    nodes = {}
    for client in range(3):
        mine, tests = owners == client, owners_test == client
        parts = {n: a[tests if n.endswith("test") else mine] for n, a in everything.items()}
        np.savez(tmp_path / f"{client}.npz", **parts)
        own = Node(server="localhost:1", client=client, data=f"npz:{tmp_path}/{client}.npz",
                   store=tmp_path / f"node-{client}")  # fmt: skip
        nodes[client] = NodeServer(client, own.store, lambda hello, own=own: open_job(own, hello))
    form = "remote(owners=3, shape=[6], outputs=3)"
    job = build(make(common | {"dataset": form}))
    there = Deployed(job, tmp_path, servers=nodes).play()
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)


def test_an_outage_longer_than_a_round_fails_nobody(tmp_path):
    class Slow(GridTransport):
        is_lost = False

        def pull(self, messages):
            if not Slow.is_lost and self._grid.pushed > 3:  # behind the greetings
                Slow.is_lost = True
                self._grid.replies.clear()
                time.sleep(0.6)
                raise LostError("gone")
            return super().pull(messages)

    job = stateful()
    there = Deployed(job, tmp_path, transport=Slow, seconds=0.5).play()
    assert Slow.is_lost
    assert there.summary.failed == 0
    assert there.summary.model_hash == absent(job, []).summary.model_hash


FIGURES = {
    "too many sums": lambda tallies: {"tensor": torch.ones(1, 7, dtype=torch.float64)},
    "flat": lambda tallies: {"tensor": tallies[0, :1]},
    "of another type": lambda tallies: {"tensor": tallies.float()},
    "missing": lambda tallies: {"other": tallies},
}


@pytest.mark.parametrize("figures", FIGURES)
def test_figures_that_do_not_fit_are_left_out_of_the_evaluation(figures, tmp_path):
    def change(client, call, good):
        answer = peek(good, Answer)
        if client != 1 or kind_of(answer.result) != "Tallies":
            return good
        forged = blob.pack(FIGURES[figures](response_of(answer).tallies))
        result = msgspec.structs.replace(answer.result, blobs=(forged,))
        return seal(msgspec.structs.replace(answer, result=result), None)

    job = small_job(method="fedavg", clients=3, cohort=3, rounds=2)
    there = Deployed(job, tmp_path, change).play(tmp_path / "run")
    assert there.summary.model_hash == absent(job, []).summary.model_hash
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        assert [x is None for x in line["client_accuracy"]] == [False, True, False]


def test_densities_of_tensors_that_a_model_does_not_have_do_not_stop_the_run(tmp_path):
    def change(client, call, good):
        answer = peek(good, Answer)
        if client != 1 or kind_of(answer.result) != "Tallies":
            return good
        return seal(changed(good, lambda r: r._replace(shares={"nonsense": Share(0.5, 7)})), None)

    job = stateful(rounds=2)
    there = Deployed(job, tmp_path, change).play()
    assert there.summary.model_hash == absent(job, []).summary.model_hash


@pytest.mark.parametrize("density", [math.nan, math.inf, -0.5, 2.0])
def test_densities_that_no_model_has_do_not_reach_the_rows(density, tmp_path):
    def change(client, call, good):
        answer = peek(good, Answer)
        if client != 1 or kind_of(answer.result) != "Tallies":
            return good
        response = response_of(answer)
        shares = {name: Share(density, size) for name, (_, size) in response.shares.items()}
        return seal(with_response(answer, response._replace(shares=shares)), None)

    job = stateful(rounds=2)
    Deployed(job, tmp_path, change).play(tmp_path / "run")
    rows = RunFolder(tmp_path / "run").records.rows()
    assert [row.density for row in rows] == [1.0, 1.0]


def test_a_greeting_that_says_nothing_new_does_not_load_data_again(tmp_path):
    opened, terms = [], terms_of(stateful())
    own = Node(server="localhost:1", client=1, data="job", store=tmp_path)

    def open_it(hello):
        opened.append(hello.config)
        return open_job(own, hello)

    node_server = NodeServer(1, tmp_path, open_it)
    for _ in range(3):
        assert result_of(node_server, Call("0" * 32, 1, 0, -1, terms.hello)) == Ready()
    other = msgspec.structs.replace(terms.hello, config=terms.hello.config + "\n")
    assert result_of(node_server, Call("0" * 32, 1, 0, -1, other)) == Ready()
    assert opened == [terms.hello.config, other.config]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"clients": 1}, "clients 0 to 0"), ({"init_from": "/etc/passwd"}, "does not choose files")],
)
def test_a_job_that_is_not_for_this_node_is_refused(settings, words, tmp_path):
    own = Node(server="localhost:1", client=1, data="digits", store=tmp_path)
    config = to_toml(replace(stateful().config, cohort=1, min_replies=1, **settings))
    with pytest.raises(ConfigError, match=words):
        open_job(own, msgspec.structs.replace(terms_of(stateful()).hello, config=config))


def test_owners_data_is_scaled_as_the_job_says(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x=pixels, y=labels, x_test=pixels, y_test=labels)
    own = Node(server="localhost:1", client=0, data=f"npz:{tmp_path}/a.npz", store=tmp_path)
    form = "remote(owners=1, shape=[8, 8, 1], outputs=2)"
    for how in ("unit", "raw255"):
        job = build(make({"dataset": form, "input_scale": how}))
        opened = open_job(own, hello_of(job))
        (inputs, _), *_ = opened.federation.batches(0).work(fold(0))
        assert inputs.min() >= 0
        assert (inputs.max() > 1) == (how == "raw255")


def test_figures_that_no_row_can_hold_are_a_failure(tmp_path):
    def change(client, call, good):
        if client != 1 or not is_training(call, 1):
            return good
        return seal(changed(good, lambda r: r._replace(macs=Macs(2**63, 0, 0))), None)

    job = stateful(rounds=2)
    there = Deployed(job, tmp_path, change).play(tmp_path / "run")
    assert [row.lost for row in there.rows] == [[1], []]


def test_a_deployment_with_keys_does_not_hear_who_has_none(tmp_path):
    job = stateful(rounds=1)
    with pytest.raises(RoundError, match="0 of 3 clients"):
        Deployed(job, tmp_path, nodes={}).play()


def test_an_owner_whose_data_cannot_be_loaded_says_so_and_stays(tmp_path):
    def broken(hello):
        raise KeyError("no such column")

    node_server = NodeServer(1, tmp_path, broken)
    hello = Call("0" * 32, 1, 0, -1, terms_of(stateful()).hello)
    assert result_of(node_server, hello) == Failure(1, "KeyError: 'no such column'")


def test_a_store_is_of_one_client_and_one_process(tmp_path):
    for _ in range(2):
        with claimed(tmp_path, 1), pytest.raises(ConfigError, match="another node uses it"):
            claimed(tmp_path, 1).__enter__()
    with pytest.raises(ConfigError, match="states of client 1, not of 2"):
        claimed(tmp_path, 2).__enter__()


def test_a_client_that_never_answers_is_named_with_the_way_out(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "fedsieve")

    def change(client, call, good):
        return None if client == 1 and kind_of(call.work) == "Train" and call.round < 6 else good

    job = stateful(rounds=7)
    there = Deployed(job, tmp_path, change, seconds=0.3).play()
    assert [row.lost for row in there.rows] == [[1]] * 5 + [[], []]
    named = [r.getMessage() for r in caplog.records if "times in a row" in r.getMessage()]
    assert len(named) == 1  # after the third
    assert "client 1 has not answered 3 times in a row (no answer within 0.3 s)" in named[0]
    assert "start it again" in named[0]
    assert "--round-timeout" in named[0]


def test_a_client_that_never_answers_is_greeted_anew(tmp_path):
    greeted = []

    def change(client, call, good):
        greeted.extend([client] if isinstance(call.work, Hello) else [])
        return None if client == 1 and kind_of(call.work) == "Train" and call.round < 4 else good

    Deployed(stateful(rounds=5), tmp_path, change, seconds=0.3).play()
    assert sorted(greeted) == [0, 1, 1, 2]


class Returning(LocalGrid):
    """Node 101 loses its second message, and connects anew."""

    times = 1

    def get_nodes(self):
        when = {101: str(self.times)}
        return [NodeInfo(node_id=n, last_activated_at=when.get(n, "1")) for n in self.nodes]


def test_a_node_that_connects_anew_gets_its_call_again_and_works_once(tmp_path, monkeypatch):
    monkeypatch.setattr(open_calls, "_LOOK_SECONDS", 0.0)
    calls = []

    def change(client, call, good):
        if client == 1 and is_training(call, 2):
            calls.append(good)
            if len(calls) == 1:  # what it sent is lost with its connection
                deployed.grid.times += 1
                return None
        return good

    job = stateful()
    deployed = Deployed(job, tmp_path, change, keys=keys())
    deployed.grid = Returning(deployed.grid.nodes)
    there = deployed.play()
    assert [row.lost for row in there.rows] == [[], [], [], []]
    assert there.summary.model_hash == absent(job, []).summary.model_hash
    assert len(calls) == 2
    assert calls[0] == calls[1]  # the second is kept, not made again: signatures would differ


class Flickering(LocalGrid):
    """Node 101 is said to be gone once, and for good if `is_final`."""

    is_final, said = False, 0

    def get_nodes(self):
        is_away = self.is_final and self.said
        return [n for n in super().get_nodes() if n.node_id != 101 or not is_away]

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        for place, reply in enumerate(found):
            if reply.metadata.src_node_id == 101 and self.pushed > 5 and self.said < 1:
                self.said += 1
                gone = Error(code=ErrorCode.NODE_UNAVAILABLE, reason="gone")
                found[place] = Message(gone, metadata=reply.metadata)
        return found


@pytest.mark.parametrize("is_final", [False, True])
def test_a_node_that_is_away_for_a_moment_is_waited_for(is_final, tmp_path, monkeypatch):
    monkeypatch.setattr(open_calls, "RETURN_SECONDS", 0.3)
    monkeypatch.setattr(dispatch, "RETURN_SECONDS", 0.3)
    job = stateful()
    deployed = Deployed(job, tmp_path)
    deployed.grid = Flickering(deployed.grid.nodes)
    deployed.grid.is_final = is_final
    start = time.monotonic()
    there = deployed.play()
    assert deployed.grid.said == 1
    assert there.summary.failed == (4 if is_final else 0)  # from the first round on
    assert time.monotonic() - start < 20  # it is not waited for to the end of the round


def test_a_wrong_client_number_is_told_to_the_node_in_words(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedsieve")
    job, signing = stateful(rounds=1), keys()
    own = Node(server="localhost:1", client=0, data="job", store=tmp_path / "wrong")
    wrong = NodeServer(
        0, own.store, lambda hello: open_job(own, hello), signing[1], signing["server"].public
    )
    honest = node_servers(job, tmp_path / "nodes", signing, signing["server"].public)
    deployed = Deployed(job, tmp_path, keys=signing, servers={0: honest[0], 1: wrong, 2: honest[2]})
    there = deployed.play()
    assert there.rows[0].lost == [1]
    told = [r.getMessage() for r in caplog.records if "does not take this node" in r.getMessage()]
    assert len(told) == 1
    assert "It says it is client 0, and signs with the key of client 1" in told[0]
    assert "--client-id 1" in told[0]
    parts = [r.getMessage() for r in caplog.records if "takes part in" in r.getMessage()]
    assert len(parts) == 2  # the two that do


class Restarted(GridTransport):
    """A SuperLink that has forgotten all: nodes come back a little later, under other numbers."""

    is_lost, back_at = False, 0.0

    def nodes(self):
        return {} if time.monotonic() < self.back_at else super().nodes()

    def pull(self, messages):
        if not self.is_lost and self._grid.pushed > 6:
            self.is_lost, self.back_at = True, time.monotonic() + 0.5
            self._grid.replies.clear()
            self._grid.nodes = {node + 900: answer for node, answer in self._grid.nodes.items()}
            raise LostError("gone")
        return super().pull(messages)


def test_a_superlink_that_has_forgotten_all_its_nodes_fails_nobody(tmp_path):
    job = stateful()
    deployed = Deployed(job, tmp_path, transport=Restarted)
    there = deployed.play()
    assert min(deployed.grid.nodes) > 900
    assert there.summary.failed == 0
    assert there.summary.model_hash == absent(job, []).summary.model_hash


def test_a_node_that_loses_its_greeting_and_connects_anew_is_greeted_at_once(tmp_path):
    greeted = []

    def change(client, call, good):
        if client == 1 and isinstance(call.work, Hello):
            greeted.append(client)
            if len(greeted) == 1:
                deployed.grid.times += 1
                return None
        return good

    deployed = Deployed(stateful(rounds=1), tmp_path, change)
    deployed.grid = Returning(deployed.grid.nodes)
    start = time.monotonic()
    assert deployed.play().summary.failed == 0
    assert len(greeted) == 2
    assert time.monotonic() - start < 30
