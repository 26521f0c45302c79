"""`deploy`, `node` and `cert`: secure by default, and refusals that say the way out."""

import socket
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from fedsieve.core.errors import ConfigError
from fedsieve.deploy.node import Node
from fedsieve.deploy.server import Server


def test_without_certificates_a_deployment_must_be_asked_for(cli, tmp_path):
    code, _, err = cli("deploy", "--out", tmp_path / "run")
    assert code == 2
    assert "--certs FOLDER" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "server.example.org", "::"])
def test_insecure_is_refused_off_loopback(host, tmp_path):
    with pytest.raises(ConfigError, match="--insecure"):
        Server(host=host)
    with pytest.raises(ConfigError, match="--insecure"):
        Node(server=f"{host}:8443", client=0, data="job", store=tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"port": 99_999}, "--port"),
        ({"over_select": -1}, "--over-select"),
        ({"round_timeout": 0.0}, "--round-timeout"),
        ({"max_message_mb": 0}, "--max-message-mb"),
        ({"min_nodes": 0}, "--min-nodes"),
        ({"superlink": "nonsense:x"}, "HOST:PORT"),
        ({"superlink": "10.0.0.9:8000"}, "--insecure with --superlink"),
        ({"superlink": "127.0.0.1:8000"}, "--superlink-secret"),
        ({"superlink": "127.0.0.1:8000", "secret": Path("missing")}, "found missing"),
    ],
)
def test_what_a_server_cannot_be_is_said_at_once(given, words):
    with pytest.raises(ConfigError, match=words):
        Server(**given)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_insecure_is_possible_on_loopback(host, tmp_path):
    assert Node(server=f"{host}:8443", client=0, data="job", store=tmp_path).certs is None


def test_certificates_and_insecure_exclude_each_other(cli, tmp_path):
    code, _, err = cli("deploy", "--out", tmp_path / "run", "--certs", tmp_path, "--insecure")
    assert code == 2
    assert "not both" in err


def test_an_address_without_a_port_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Node(server="localhost", client=0, data="job", store=tmp_path)


def test_cert_makes_keys_that_only_their_owner_can_read_and_never_writes_over(cli, tmp_path):
    code, _, _ = cli("cert", tmp_path / "keys", "--nodes", "2", "--host", "a.example")
    assert code == 0
    private = ["ca/ca.key", "server/server.key", "server/sign", "node-0/node", "node-1/node"]
    for name in private:
        mode = stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode)
        assert mode == 0o600, name
    mine = (tmp_path / "keys/node-1/node.pub").read_text()
    assert (tmp_path / "keys/server/nodes/1.pub").read_text() == mine
    assert (tmp_path / "keys/node-0/node.pub").read_text() != mine
    code, _, err = cli("cert", tmp_path / "keys")
    assert code == 2
    assert "never written over" in err


def test_a_key_of_ones_own_is_never_written_over(cli, tmp_path):
    assert cli("cert", tmp_path / "mine", "--own-key")[0] == 0
    before = (tmp_path / "mine" / "node").read_bytes()
    code, _, err = cli("cert", tmp_path / "mine", "--own-key")
    assert code == 2
    assert "never written over" in err
    assert (tmp_path / "mine" / "node").read_bytes() == before


def test_a_port_in_use_is_named(cli, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = cli("deploy", "--out", tmp_path / "run", "--insecure", "--port", port)
    assert code == 2
    assert f"--port {port}: cannot listen there" in err
    assert not (tmp_path / "run").exists()


def test_remote_data_cannot_be_trained_on_here(cli):
    form = "remote(owners=2, shape=[4], outputs=2)"
    code, _, err = cli("run", "--dataset", form, "--rounds", "1")
    assert code == 2
    assert "fedsieve deploy" in err
