"""The proxy: who says nothing is not waited for, and who waits for messages gets them at once."""

import json
import socket
import threading
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
import msgspec

from deployment import free_port
from fedsieve.deploy import proxy
from fedsieve.deploy.processes import Children, proxy_command

PATIENCE = 2.0


class Behind(ThreadingHTTPServer):
    """What is behind the proxy: it answers with `waiting`, and counts."""

    waiting, calls = b"", 0

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.calls += 1
        self.send_response(200)
        self.send_header("content-length", str(len(self.server.waiting)))
        self.end_headers()
        self.wfile.write(self.server.waiting)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    folder, behind = tmp_path_factory.mktemp("proxy"), Behind()
    settings = proxy.Settings(
        host="127.0.0.1", port=free_port(), superlink=f"127.0.0.1:{behind.server_port}",
        patience=PATIENCE, traffic=str(folder / "tcp.json"), news=str(folder / "news"),
    )  # fmt: skip
    (folder / "proxy.json").write_bytes(msgspec.json.encode(settings))
    with Children() as children:
        children.keep(proxy_command(folder / "proxy.json"), folder / "proxy.log", folder)
        end = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", settings.port)):
            assert time.monotonic() < end
            time.sleep(0.1)
        yield settings, behind


START = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"POST /v1/fl",
    "half a header": START + b"content-le",
    "half a body": START + b"content-length: 9\r\n\r\nhal",
}
WHOLE = START + b"content-length: 1\r\n\r\nx"


def seconds_until_closed(connection, most):
    connection.settimeout(most)
    start = time.monotonic()
    while connection.recv(1000):
        pass
    return time.monotonic() - start


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("is_first", [True, False])
def test_half_a_request_is_not_waited_for(half, is_first, door):
    settings, _ = door
    with closing(socket.create_connection(("127.0.0.1", settings.port))) as peer:
        if not is_first:
            peer.sendall(WHOLE)
            assert peer.recv(1000).startswith(b"HTTP/1.1 200")
        peer.sendall(HALVES[half])
        assert seconds_until_closed(peer, 10 * PATIENCE) < 4 * PATIENCE


def test_a_trickle_is_not_waited_for_either(door):
    settings, _ = door
    with closing(socket.create_connection(("127.0.0.1", settings.port))) as peer:
        peer.sendall(HALVES["half a body"][:-3].replace(b": 9", b": 99999"))
        start = time.monotonic()
        with suppress(ConnectionError):  # reset, or a broken pipe
            while time.monotonic() - start < 10 * PATIENCE:
                peer.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - start < 4 * PATIENCE


def pull(settings):
    url = f"http://127.0.0.1:{settings.port}/v1/fleet/pull-messages"
    start = time.monotonic()
    answer = httpx.post(url, content=b"x", timeout=30, trust_env=False)
    assert answer.status_code == 200
    return time.monotonic() - start


def tell(settings):
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as news:
        news.sendto(b"1", settings.news)


def test_an_empty_answer_is_held_back_until_there_is_news(door):
    settings, behind = door
    before = behind.calls
    threading.Timer(1.0, tell, (settings,)).start()
    assert 0.9 < pull(settings) < 5
    assert behind.calls == before + 1


def test_a_message_is_handed_on_at_once(door):
    settings, behind = door
    behind.waiting = b"message"
    try:
        assert pull(settings) < 2
    finally:
        behind.waiting = b""


def test_bytes_on_the_wire_are_counted_of_open_and_closed_connections(door):
    settings, _ = door

    def counted():
        time.sleep(1.5)
        return json.loads(Path(settings.traffic).read_text())

    before = counted()
    with closing(socket.create_connection(("127.0.0.1", settings.port))) as peer:
        peer.sendall(WHOLE)
        received = len(peer.recv(1000))
        during = counted()
    after = counted()
    for found in (during, after):  # the end of a stream counts as one byte
        assert found["up"] - before["up"] - len(WHOLE) in {0, 1}
        assert found["down"] - before["down"] - received in {0, 1}
