"""The transport of calls to nodes, and the calls that are not answered yet."""

import math
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

_LOOK_SECONDS = 1.0
RETURN_SECONDS = 15.0  # for a node that starts again


class Arrived(NamedTuple):
    """An answer to a message, or why there is none."""

    message: str  # what it answers
    envelope: bytes
    error: str = ""
    is_gone: bool = False  # the node has disconnected


class LostError(Exception):
    """The connection is gone with all messages under way; the transport has made a new one."""


class Transport(Protocol):
    """Brings envelopes to nodes and answers back."""

    def nodes(self) -> Mapping[int, str]:
        """Nodes that are connected now, each with when it connected."""

    def push(self, envelopes: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        """Send each node its envelope; returns the node of every message, by name."""

    def pull(self, messages: Iterable[str]) -> list[Arrived]:
        """Answers that have arrived; each is handed out once."""


class OpenCalls:
    """The calls of one exchange."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}  # nodes by message
        self._sent: dict[int, str] = {}  # when each node had connected as its call went out
        self._gone: dict[int, float] = {}  # nodes that disconnected, and when that was seen
        self._online: Mapping[int, str] = {}
        self._looked = 0.0

    def look(self, transport: Transport) -> None:
        """Update who is connected; a node that has reconnected gets its call again."""
        if (now := time.monotonic()) - self._looked > _LOOK_SECONDS:
            self._online, self._looked = transport.nodes(), now
            for node, when in list(self._sent.items()):
                if self._online.get(node, when) != when:
                    del self._sent[node]

    def is_wanted(self, node: int) -> bool:
        """Whether a call is to be sent now."""
        return node not in self._sent and (node not in self._gone or node in self._online)

    def send(self, messages: Mapping[str, int]) -> None:
        """Register messages that were sent."""
        self.waiting |= messages
        for node in messages.values():
            self._sent[node] = self._online.get(node, "")
            self._gone.pop(node, None)

    def may_return(self, node: int) -> bool:
        """Note that a node has disconnected; whether it is worth waiting for."""
        if node not in self.waiting.values():
            self._gone.setdefault(node, time.monotonic())
            self._sent.pop(node, None)
            self._looked = 0.0
        return True

    def is_given_up(self, node: int) -> bool:
        """Whether a node has been away for too long."""
        return time.monotonic() - self._gone.get(node, math.inf) > RETURN_SECONDS
