"""What a node's operator is told when there is no connection, by real sockets."""

import json
import re
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
import msgspec

from deployment import free_port
from fedsieve.deploy import proxy
from fedsieve.deploy.certificates import make_all
from fedsieve.deploy.flower.fleet import Fleet
from fedsieve.deploy.flower.reasons import reason_of
from fedsieve.deploy.processes import Children, proxy_command
from fedsieve.deploy.signature import fresh_key


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("reasons")
    for name in ("keys", "others"):
        make_all(found / name, ["localhost"], nodes=1, days=1)
    return found


@contextmanager
def proxy_at(folder, host, certs):
    """A proxy with no SuperLink behind it."""
    name = f"{host}-{certs}"
    home = folder / str(certs) / "server"
    files = {"ca": "ca.crt", "certificate": "server.crt", "key": "server.key"} if certs else {}
    settings = proxy.Settings(
        host=host, port=free_port(), superlink=f"unix:{folder}/none", traffic="",
        **{field: str(home / file) for field, file in files.items()},
    )  # fmt: skip
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.encode(settings))
    with Children() as children:
        children.keep(proxy_command(path), folder / f"{name}.log", folder)
        yield settings.port


@pytest.fixture(scope="module")
def doors(folder):
    with (
        proxy_at(folder, "127.0.0.1", "keys") as tls,
        proxy_at(folder, "127.0.0.2", "keys") as other,
        proxy_at(folder, "127.0.0.1", None) as plain,
    ):
        yield {
            "tls": f"localhost:{tls}", "other name": f"127.0.0.2:{other}",
            "plain": f"localhost:{plain}", "none": f"localhost:{free_port()}",
        }  # fmt: skip


def told(folder, server, certs, tmp_path):
    """The reason a node gives, once the door is open."""
    home = None if certs is None else folder / certs / "node-0"
    ca = None if home is None else (home / "ca.crt").read_bytes()
    fleet, end = Fleet(server, ca, fresh_key(), tmp_path), time.monotonic() + 30
    while True:
        with pytest.raises(httpx.HTTPError) as error:
            fleet.pull()
        reason = reason_of(error.value, server, home)
        if "Connection refused" not in reason or time.monotonic() > end:
            fleet.leave()
            return reason
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("door", "certs", "words"),
    [
        ("tls", "others", "not signed by the CA in .*others/node-0/ca.crt.*Ask its operator"),
        ("other name", "keys", "not for the name '127.0.0.2'.*fedsieve cert --host"),
        ("tls", None, "closed the connection.*--certs, not --insecure"),
        ("plain", "keys", "does not speak TLS.*--insecure"),
        ("tls", "keys", "starts, or starts again .503."),
    ],
)
def test_what_is_wrong_is_said_in_words(door, certs, words, folder, doors, tmp_path):
    reason = told(folder, doors[door], certs, tmp_path)
    assert re.search(words, reason), reason
    assert doors[door] in reason


def test_a_port_where_nobody_listens_is_named(tmp_path):
    server = f"localhost:{free_port()}"
    with pytest.raises(httpx.HTTPError) as error:
        Fleet(server, None, fresh_key(), tmp_path).pull()
    reason = reason_of(error.value, server, None)
    assert server in reason
    assert "cannot be reached" in reason
    assert "Is the server running" in reason


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, {"code": 2004, "detail": "x"}, "does not admit the key node/node.pub"),
        (401, {"detail": "Invalid SuperNode authentication"}, "clock"),
        (404, {}, "no fedsieve server"),
        (418, {}, "refused a call .418"),
    ],
)
def test_refusals_are_told_apart(status, body, words):
    request = httpx.Request("POST", "https://server:1")
    response = httpx.Response(status, text=json.dumps(body), request=request)
    error = httpx.HTTPStatusError("no", request=request, response=response)
    assert re.search(words, reason_of(error, "server:1", Path("node")))
