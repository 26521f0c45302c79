"""Faults on real processes: the run completes, and equals one where the client was absent.

SpaFL has both what could go wrong: weights that stay with a client from round to round, and
thresholds that are averaged. `model_hash` covers the two, of all clients and the server.
"""

import json
import os
import signal
import time

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import msgspec

from deployment import SLOW, Deployment, child_of, free_port, listening_ports, superlink_command
from fedsieve.deploy import proxy
from fedsieve.deploy.processes import (
    Children,
    proxy_command,
)

pytestmark = pytest.mark.e2e


def lost(deployment):
    return {row["round"]: row["lost"] for row in deployment.rows() if row.get("lost")}


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory):
    """Client 1 raises in round 2, is late in round 3, sends garbage in 5 and too much in 6."""
    folder = tmp_path_factory.mktemp("misbehaved")
    faults = {"raise": 2, "sleep": [3, 45 * SLOW], "garbage": 5, "large": 6}
    with Deployment(folder, method="spafl", rounds=8, eval_every=4) as deployment:
        server = deployment.server("--round-timeout", 30 * SLOW, "--max-message-mb", 2)
        for client in (0, 2):
            deployment.node(client)
        deployment.node(1, faults)
        return deployment, deployment.finish(server)


def test_the_run_completes_and_rows_count_the_client_that_failed(misbehaved):
    deployment, result = misbehaved
    missed = lost(deployment)
    assert [row["round"] for row in deployment.rows()] == list(range(1, 9))
    assert set(missed) >= {2, 3, 5, 6}
    assert all(clients == [1] for clients in missed.values())
    assert result["failed"] == len(missed)
    assert not missed.keys() & {1, 7, 8}  # it is back


def test_personal_states_are_those_of_a_client_that_was_absent(misbehaved):
    deployment, result = misbehaved
    here = deployment.here()
    assert result["model_hash"] == here.summary.model_hash
    assert [row["failed"] for row in deployment.rows()] == [row.failed for row in here.rows]


def test_payload_bytes_are_those_of_the_replay(misbehaved):
    deployment, _ = misbehaved
    for row, other in zip(deployment.rows(), deployment.here().rows, strict=True):
        assert row["up_bytes"] == other.up_bytes > 0
        assert row["down_bytes"] == other.down_bytes > 0


def test_a_server_that_gave_up_and_one_that_was_killed_go_on_from_the_checkpoint(tmp_path):
    with Deployment(tmp_path, method="spafl", rounds=5) as deployment:
        first = deployment.server("--min-replies", 3)
        for client in (0, 2):
            deployment.node(client)
        deployment.node(1, {"raise": 2})
        deployment.wait_until(lambda: first.poll() is not None, "the end of the first")
        assert first.returncode == 2
        assert "round 2: 2 of 3 clients" in deployment.log_of("server")
        assert [row["round"] for row in deployment.rows()] == [1]
        second = deployment.server("--resume", config=False)
        deployment.wait_until(lambda: len(deployment.rows()) >= 3, "round 3")
        second.kill()
        second.wait()
        third = deployment.server("--resume", config=False)
        there = deployment.finish(third)
    assert lost(deployment) == {}
    assert there["model_hash"] == deployment.here().summary.model_hash
    rows = deployment.rows()
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    traffic = json.loads((deployment.run / "traffic.json").read_text())
    first_round, last_round = traffic["rounds"]  # of the third server
    assert 2 < first_round <= last_round == 5
    for way in ("up", "down"):
        sizes = [row[f"{way}_bytes"] for row in rows if row["round"] >= first_round]
        assert traffic["payload"][way] == sum(sizes)
        layers = [traffic[name][way] for name in ("payload", "envelopes", "flower", "tcp")]
        assert layers == sorted(layers)


def test_a_superlink_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path):
    with Deployment(tmp_path, method="spafl", rounds=4) as deployment:
        server = deployment.server()
        deployment.nodes()
        deployment.wait_until(lambda: len(deployment.rows()) >= 1, "round 1")
        os.kill(child_of(server, "flower.private"), signal.SIGKILL)
        there = deployment.finish(server)
    assert lost(deployment) == {}
    assert there["model_hash"] == deployment.here().summary.model_hash
    assert [row["round"] for row in deployment.rows()] == [1, 2, 3, 4]


def test_a_node_killed_in_a_round_comes_back_with_its_state_and_counts(tmp_path):
    with Deployment(tmp_path, method="spafl", rounds=5, eval_every=5) as deployment:
        server = deployment.server("--round-timeout", 240 * SLOW)
        for client in (0, 2):
            deployment.node(client)
        victim = deployment.node(1, {"sleep": [2, 600 * SLOW]})
        deployment.wait_until(lambda: "asleep" in deployment.log_of("node-1"), "round 2")
        kept = list((tmp_path / "store-1").glob("jobs/*/states/*"))
        assert len(kept) == 1
        victim.kill()
        victim.wait()
        deployment.node(1)  # gets the call again
        there = deployment.finish(server)
    assert lost(deployment) == {}
    assert there["model_hash"] == deployment.here().summary.model_hash


def test_a_node_that_stays_away_is_left_out_before_the_time_is_up(tmp_path):
    with Deployment(tmp_path, method="spafl", rounds=4, eval_every=4) as deployment:
        server = deployment.server("--round-timeout", 600 * SLOW)
        for client in (0, 2):
            deployment.node(client)
        victim = deployment.node(1, {"sleep": [2, 600 * SLOW]})
        deployment.wait_until(lambda: "asleep" in deployment.log_of("node-1"), "round 2")
        victim.kill()
        there = deployment.finish(server)
    assert lost(deployment) == {2: [1], 3: [1], 4: [1]}
    assert deployment.rows()[1]["seconds"] < 200 * SLOW  # a minute, and some to come back
    assert there["model_hash"] == deployment.here().summary.model_hash


def test_a_node_that_was_stopped_for_long_answers_in_time_again(tmp_path):
    with Deployment(tmp_path, method="spafl", rounds=60, eval_every=60) as deployment:
        server = deployment.server("--round-timeout", 10 * SLOW)
        nodes = deployment.nodes()
        deployment.wait_until(lambda: len(deployment.rows()) >= 2, "round 2")
        os.kill(nodes[1].pid, signal.SIGSTOP)
        time.sleep(80)  # longer than any heartbeat
        os.kill(nodes[1].pid, signal.SIGCONT)
        there = deployment.finish(server)
    missed = lost(deployment)
    assert all(clients == [1] for clients in missed.values())
    assert max(missed) - min(missed) + 1 == len(missed)  # once, and not again
    assert max(missed) < 60
    assert there["model_hash"] == deployment.here().summary.model_hash


def test_other_processes_of_the_machine_get_nothing_from_the_server(tmp_path):
    with Deployment(tmp_path, method="fedavg", rounds=3) as deployment:
        server = deployment.server()
        nodes = deployment.nodes()
        deployment.wait_until(lambda: len(deployment.rows()) >= 1, "round 1")
        children = [child_of(server, name) for name in ("flower.private", "deploy.proxy")]
        ports = {p for process in (server.pid, *children) for p in listening_ports(process)}
        assert ports == {deployment.port}
        assert not any(listening_ports(node.pid) for node in nodes)
        deployment.finish(server)


def test_the_first_to_answer_count_and_the_record_replays_to_the_same_bits(tmp_path):
    settings = {"method": "spafl", "clients": 3, "cohort": 2, "rounds": 3}
    with Deployment(tmp_path, **settings) as deployment:
        server = deployment.server("--over-select", 1, "--round-timeout", 120 * SLOW)
        deployment.node(0, {"sleep": [2, 20 * SLOW]})
        for client in (1, 2):
            deployment.node(client)
        there = deployment.finish(server)
    rows = deployment.rows()
    assert [row["spare"] for row in rows] == [1, 1, 1]
    assert rows[1]["late"] == [0]
    assert all(row["clients"] == 2 for row in rows)
    assert there["model_hash"] == deployment.here().summary.model_hash


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A SuperLink that runs already behind its proxy, and nodes: they serve job after job."""
    folder = tmp_path_factory.mktemp("standing")
    with Deployment(folder) as deployment, Children() as children:
        certs, inner = folder / "keys" / "server", free_port()
        (folder / "secret").write_bytes(b"secret")
        command = superlink_command(inner, folder, certs)
        children.keep(command, folder / "superlink.log", folder)
        door = proxy.Settings(
            host="127.0.0.1", port=deployment.port, superlink=f"127.0.0.1:{inner}",
            ca=str(certs / "ca.crt"), certificate=str(certs / "server.crt"),
            key=str(certs / "server.key"), traffic=str(folder / "tcp.json"),
        )  # fmt: skip
        (folder / "proxy.json").write_bytes(msgspec.json.encode(door))
        children.keep(proxy_command(folder / "proxy.json"), folder / "proxy.log", folder)
        deployment.nodes()
        yield deployment, f"127.0.0.1:{inner}"


@pytest.mark.parametrize("method", ["fedavg", "spafl", "flops_pa"])
def test_methods_end_in_the_same_bits_on_real_processes(method, standing):
    deployment, superlink = standing
    deployment.give(method, method=method)
    secret = deployment.folder / "secret"
    server = deployment.server("--superlink", superlink, "--superlink-secret", secret)
    there, here = deployment.finish(server), deployment.here()
    assert there["model_hash"] == here.summary.model_hash
    for way in ("up", "down"):
        traffic = json.loads((deployment.run / "traffic.json").read_text())
        assert traffic["payload"][way] == getattr(here.summary, f"{way}_bytes") > 0
