"""The gate: the only door of a deployment, open for what nodes need and nothing else.

A SuperLink serves nodes, operators and executors on one port, and asks operators for no password.
It therefore listens on loopback, and the gate hands on only the calls of connected nodes, which
the SuperLink checks by key. Paths are taken from a list, never from the caller.

    python gate.py SETTINGS.json

It stands alone, so that it starts without torch.
"""

import asyncio
import json
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import httpx
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
_MOST_WAITING = 2**30  # bytes of requests being read, of all senders
UNKEYED_CALLS = ("register-node", "unregister-node")  # of nodes without keys, in a trial
_DROPPED = {"host", "connection", "transfer-encoding", "content-length", "keep-alive", "upgrade"}

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where it listens and what is behind it."""

    host: str
    port: int
    superlink: str
    ca: str = ""  # files; empty in a trial without TLS
    certificate: str = ""
    key: str = ""
    limit_bytes: int = 64 * 2**20  # of one request: Flower sends large messages in pieces of 5 MiB
    traffic: str  # file to which bytes on the wire are written


class _Refused(Exception):  # noqa: N818 - it ends a request
    """A request that is not taken; `status` is the answer, 0 none."""

    def __init__(self, status: int) -> None:
        self.status = status


class Gate:
    """An ASGI application."""

    def __init__(self, settings: Settings) -> None:
        is_plain = not settings.ca
        base = f"{'http' if is_plain else 'https'}://{settings.superlink}/v1/fleet/"
        calls = NODE_CALLS + UNKEYED_CALLS if is_plain else NODE_CALLS
        self._targets = {f"/v1/fleet/{name}": base + name for name in calls}
        verify = ssl.create_default_context(cafile=settings.ca) if settings.ca else False
        self._client = httpx.AsyncClient(
            verify=verify,
            timeout=120,
            limits=httpx.Limits(max_connections=200),
            trust_env=False,  # no proxy between two programs of one machine
        )
        self._limit, self._waiting = settings.limit_bytes, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
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
        headers = _kept(scope["headers"], "accept-encoding")  # httpx says what it can unpack
        try:
            answer = await self._client.post(target, content=body, headers=headers)
        except httpx.TransportError:
            await _respond(send, 503, b"")  # nodes try again
            return
        kept = _kept(answer.headers.raw, "content-encoding")  # and has unpacked it
        await _respond(send, answer.status_code, answer.content, kept)

    async def _body(self, receive: Receive) -> bytes:
        """The request; of one that is not taken the rest is not read.

        Raises:
            _Refused: it is larger than allowed, its sender has gone, or too much is being read.
        """
        parts, size = [], 0
        try:
            while True:
                event = await receive()
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
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*(headers or []), length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


class Counted(H11Protocol):
    """HTTP connections whose bytes on the wire are counted, as the kernel sees them."""

    seen: ClassVar[dict["Counted", tuple[int, int]]] = {}  # open connections
    closed: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        Counted.seen[self] = (0, 0)

    def data_received(self, data: bytes) -> None:
        self.look()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.look()
        up, down = Counted.seen.pop(self)
        Counted.closed.update(up=up, down=down)
        super().connection_lost(exc)

    def look(self) -> None:
        """Note where the counters stand; they only grow, and are gone with the socket."""
        Counted.seen[self] = max(Counted.seen[self], _tcp_bytes(self.transport))


def traffic() -> dict[str, int]:
    """Bytes received and sent, TLS included, without headers of TCP and IP."""
    sums = Counter(Counted.closed)
    for connection in list(Counted.seen):
        connection.look()
        up, down = Counted.seen[connection]
        sums.update(up=up, down=down)
    return {"up": sums["up"], "down": sums["down"]}


def _tcp_bytes(transport: Any) -> tuple[int, int]:
    """Bytes received and acknowledged of a connection: fields of Linux's struct tcp_info."""
    connection = transport.get_extra_info("socket")
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        acknowledged, received = struct.unpack_from("=QQ", info, 120)
    except (AttributeError, OSError, struct.error):
        return 0, 0
    return received, acknowledged


async def _report(path: Path) -> None:
    before = None
    while True:
        if (now := traffic()) != before:
            fresh = path.with_suffix(".tmp")
            fresh.write_text(json.dumps(now))
            fresh.replace(path)
            before = now
        await asyncio.sleep(1)


def main() -> None:
    """Serve until ended."""
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    if settings.traffic and Path(settings.traffic).exists():  # a gate of this server has ended
        Counted.closed.update(json.loads(Path(settings.traffic).read_text()))
    config = uvicorn.Config(
        Gate(settings),
        host=settings.host,
        port=settings.port,
        http=Counted,
        ssl_certfile=settings.certificate or None,
        ssl_keyfile=settings.key or None,
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_keep_alive=75,
    )

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            report = (
                group.create_task(_report(Path(settings.traffic))) if settings.traffic else None
            )
            await uvicorn.Server(config).serve()
            if report:
                report.cancel()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
