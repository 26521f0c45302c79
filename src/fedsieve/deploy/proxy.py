"""The TLS proxy in front of a SuperLink: it forwards the calls that nodes need, and no others.

A SuperLink serves nodes, operators and executors alike, and asks operators for no password. It
therefore listens where only this machine's operator reaches it, and the proxy forwards only the
calls of connected nodes, which the SuperLink checks by key. Paths are taken from a list, never from
the caller.

    python -m fedsieve.deploy.proxy SETTINGS.json

It imports little, so that it starts without torch.

A node asks for messages; where there is none, the proxy keeps the answer back until the server says
that there are some. So nobody has to ask every moment, and nobody has to wait.
"""

import asyncio
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvicorn

from fedsieve.deploy.listener import Listener

NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
UNKEYED_CALLS = ("register-node", "unregister-node")  # of nodes without keys, in a trial
UNIX = "unix:"
_PULL = "/v1/fleet/pull-messages"
_MOST_WAITING = 2**30  # bytes of requests being read, of all senders
_HELD_SECONDS = 15.0  # nodes give a call 30 s
_SLOWEST = 10_000  # bytes a second of a request that is read
_DROPPED = {"host", "connection", "transfer-encoding", "content-length", "keep-alive", "upgrade"}

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the proxy listens, and the SuperLink behind it."""

    host: str
    port: int
    superlink: str  # unix:PATH or host:port
    ca: str = ""  # files; empty in a trial without TLS
    certificate: str = ""
    key: str = ""
    max_bytes: int = 64 * 2**20  # of one request: Flower sends large messages in pieces of 5 MiB
    patience: float = 30.0  # seconds for a request to arrive, and between two of them
    traffic: str  # file to which bytes on the wire are written
    news: str = ""  # datagram socket: the server sends a byte when there are messages


class _Refused(Exception):  # noqa: N818 - it ends a request
    """A request that is not taken; `status` is the answer, 0 none."""

    def __init__(self, status: int) -> None:
        self.status = status


class News(asyncio.DatagramProtocol):
    """Notifies waiting calls that there are messages."""

    def __init__(self) -> None:
        self.count = 0
        self._come = asyncio.Event()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.count += 1
        self._come.set()
        self._come = asyncio.Event()

    async def since(self, count: int, seconds: float) -> None:
        """Wait for news after the first `count`, though not forever."""
        if self.count == count:
            try:
                await asyncio.wait_for(self._come.wait(), seconds)
            except TimeoutError:
                return


class Proxy:
    """The proxy as an ASGI application."""

    def __init__(self, settings: Settings, listener: Listener, news: News) -> None:
        self._listener, self._news = listener, news
        address = settings.superlink
        is_plain, is_local = not settings.ca, address.startswith(UNIX)
        scheme = "http" if is_plain or is_local else "https"
        base = f"{scheme}://{'superlink' if is_local else address}/v1/fleet/"
        calls = NODE_CALLS + UNKEYED_CALLS if is_plain else NODE_CALLS
        self._targets = {f"/v1/fleet/{name}": base + name for name in calls}
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=ssl.create_default_context(cafile=settings.ca) if settings.ca else False,
                limits=httpx.Limits(max_connections=200),
                uds=address.removeprefix(UNIX) if is_local else None,
            ),
            timeout=120,
        )
        self._limit, self._patience, self._waiting = settings.max_bytes, settings.patience, 0
        self._can_hold = bool(settings.news)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with self._listener.busy(scope["client"]):
            target = self._targets.get(scope["path"]) if scope["method"] == "POST" else None
            if target is None:
                await _respond(send, 404, b"")
                return
            try:
                body = await self._body(receive)
            except _Refused as refused:
                if refused.status:
                    await _respond(send, refused.status, b"")
                return
            await self._forward(scope, target, body, receive, send)

    async def _forward(
        self, scope: Scope, target: str, body: bytes, receive: Receive, send: Send
    ) -> None:
        headers, told = _kept(scope["headers"], "accept-encoding"), self._news.count
        try:
            answer = await self._client.post(target, content=body, headers=headers)
        except httpx.TransportError:
            await _respond(send, 503, b"")  # nodes try again
            return
        is_empty = scope["path"] == _PULL and answer.status_code == 200 and not answer.content
        if is_empty and self._can_hold:
            waiting = asyncio.ensure_future(self._news.since(told, _HELD_SECONDS))
            gone = asyncio.ensure_future(receive())  # returns when the node has gone
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            gone.cancel()
        kept = _kept(answer.headers.raw, "content-encoding")  # httpx has unpacked it
        await _respond(send, answer.status_code, answer.content, kept)

    async def _body(self, receive: Receive) -> bytes:
        """The request; of one that is not taken the rest is not read.

        Raises:
            _Refused: it is larger than allowed, its sender has gone or stopped, or too much is
                being read.
        """
        parts, size = [], 0
        start = time.monotonic()
        try:
            while True:
                left = start + self._patience + size / _SLOWEST - time.monotonic()
                try:
                    event = await asyncio.wait_for(receive(), max(left, 0.001))
                except TimeoutError:
                    raise _Refused(408) from None
                if event["type"] == "http.disconnect":
                    raise _Refused(0)
                parts.append(event.get("body", b""))
                size += len(parts[-1])
                self._waiting += len(parts[-1])
                if size > self._limit:
                    raise _Refused(413)
                if self._waiting > _MOST_WAITING:
                    raise _Refused(503)  # nodes try again
                if not event.get("more_body"):
                    return b"".join(parts)
        finally:
            self._waiting -= size


def _kept(headers: Headers, dropped: str) -> Headers:
    """Headers that concern both ends, not one connection."""
    return [(k, v) for k, v in headers if k.decode().lower() not in _DROPPED | {dropped}]


async def _respond(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    more = [(b"connection", b"close")] if status == 408 else []
    length = (b"content-length", str(len(body)).encode())
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [*(headers or []), length, *more],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def _look_after(listener: Listener, path: Path | None) -> None:
    """Close idle connections, and write the bytes of all to a file, every second."""
    before = None
    while True:
        listener.sweep()
        if path is not None and (now := listener.traffic()) != before:
            fresh = path.with_suffix(".tmp")
            fresh.write_text(json.dumps(now))
            fresh.replace(path)
            before = now
        await asyncio.sleep(1)


async def serve(settings: Settings) -> None:
    """Serve until ended."""
    traffic = Path(settings.traffic) if settings.traffic else None
    listener = Listener.at(settings.host, settings.port, settings.patience)
    if traffic and traffic.exists():  # a proxy of this server has ended
        listener.closed.update(json.loads(traffic.read_text()))
    news = News()
    if settings.news:
        with suppress(FileNotFoundError):
            os.remove(settings.news)  # noqa: PTH107 - at the start, when nothing waits
        await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: news, local_addr=settings.news, family=socket.AF_UNIX
        )
    config = uvicorn.Config(
        Proxy(settings, listener, news),
        http="h11",
        ssl_certfile=settings.certificate or None,
        ssl_keyfile=settings.key or None,
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    async with asyncio.TaskGroup() as group:
        look_after = group.create_task(_look_after(listener, traffic))
        await uvicorn.Server(config).serve(sockets=[listener])
        look_after.cancel()


def main() -> None:
    """Run the program."""
    asyncio.run(serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)))


if __name__ == "__main__":
    main()
