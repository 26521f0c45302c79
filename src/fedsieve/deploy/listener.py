"""A listening socket that counts the bytes of its connections and closes those that say nothing."""

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self


class Connection(socket.socket):
    """One connection: whether a request is under way, and since when not."""

    listener: "Listener"
    peer: Any = None
    requests = 0
    idle_since = 0.0

    def close(self) -> None:
        """Close it, and count its bytes."""
        self.listener.forget(self)
        super().close()

    def tcp_bytes(self) -> tuple[int, int]:
        """Bytes received and acknowledged, as the kernel counts: Linux's struct tcp_info."""
        try:
            info = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            acknowledged, received = struct.unpack_from("=QQ", info, 120)
        except (AttributeError, OSError, struct.error):
            return 0, 0
        return received, acknowledged


class Listener(socket.socket):
    """Accepts connections for a server that is given this socket.

    A connection on which no request has arrived whole for `patience` seconds (or twice that, if it
    has had one) is closed, whatever part of a request it has sent.
    """

    patience = 30.0

    @classmethod
    def at(cls, host: str, port: int, patience: float) -> Self:
        """A socket that listens."""
        listener = cls(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.patience = patience
        return listener

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.open: dict[Any, Connection] = {}  # by address of the peer
        self.closed: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        plain, peer = super().accept()
        connection = Connection(plain.family, plain.type, plain.proto, fileno=plain.detach())
        connection.listener, connection.peer = self, peer[:2]
        connection.idle_since = time.monotonic()
        self.open[peer[:2]] = connection
        return connection, peer

    @contextmanager
    def busy(self, peer: Any) -> Iterator[None]:
        """A request from `peer` is being answered."""
        connection = self.open.get(tuple(peer or ()))
        if connection is None:
            yield
            return
        connection.requests += 1
        try:
            yield
        finally:
            connection.requests -= 1
            # As after a first one: a node that works for a while keeps its connection.
            connection.idle_since = time.monotonic() + self.patience

    def sweep(self) -> None:
        """Close connections on which nothing has come for too long."""
        end = time.monotonic() - self.patience
        for connection in list(self.open.values()):
            if not connection.requests and connection.idle_since < end:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # the server sees its end, and closes it

    def forget(self, connection: Connection) -> None:
        """Count the bytes of a connection that ends."""
        if self.open.get(connection.peer) is connection:
            del self.open[connection.peer]
            up, down = connection.tcp_bytes()
            self.closed.update(up=up, down=down)

    def traffic(self) -> dict[str, int]:
        """Bytes received and sent, TLS included, without headers of TCP and IP."""
        sums = Counter(self.closed)
        for connection in list(self.open.values()):
            up, down = connection.tcp_bytes()
            sums.update(up=up, down=down)
        return {"up": sums["up"], "down": sums["down"]}
