"""A grid that never waits: a reply is handed out when all its pieces are there.

Flower's own stops for the pieces of one reply, for hours if they never come, while the time of all
other nodes runs out.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedsieve.core.errors import WireError
from fedsieve.deploy.flower import private as flwr

_AT_ONCE = 4
_FAULT_SECONDS = 30.0
_KEPT_SECONDS = 3600.0  # parts of a reply whose sender has gone
Request = TypeVar("Request")
T = TypeVar("T")


@dataclass
class _Partial:
    """A reply that is announced, and what has come of it."""

    tree: flwr.ObjectTree
    left: list[str]
    objects: dict[str, bytes] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)


class RuntimeGrid(Grid):
    """Messages of one run through a SuperLink."""

    def __init__(self, client: flwr.RuntimeHttpClient, run: int, node: int) -> None:
        self._client, self._run_id, self._node = client, run, flwr.Node(node_id=node)
        self._partial: dict[str, _Partial] = {}  # by the message that is replied to

    def get_nodes(self) -> Iterable[flwr.NodeInfo]:
        """Nodes that are connected."""
        return list(_patiently(self._client.GetNodes, flwr.GetNodesRequest()).nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Their numbers."""
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their names."""
        now = time.monotonic()
        self._partial = {n: p for n, p in self._partial.items() if now - p.since < _KEPT_SECONDS}
        sent = [flwr.pieces_of(message) for message in messages]
        announced = flwr.PushAppMessagesRequest(
            messages_list=[each.announced for each in sent],
            message_object_trees=[each.tree for each in sent],
        )
        response = _patiently(self._client.PushMessages, announced)
        objects = {name: data for each in sent for name, data in each.objects.items()}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            push = lambda name: self._push(name, objects[name], response.session_id)  # noqa: E731
            list(pool.map(push, response.objects_to_push))
        return list(response.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that are complete; each is handed out once."""
        names = list(message_ids)
        unknown = [name for name in names if name not in self._partial]
        if unknown:
            asked = flwr.PullAppMessagesRequest(message_ids=unknown)
            pulled = _patiently(self._client.PullMessages, asked)
            for each, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
                partial = _Partial(tree, flwr.names_of(tree))
                self._partial[each.metadata.reply_to_message_id] = partial
        return [self._taken(name) for name in names if self._is_complete(name)]

    def _push(self, name: str, data: bytes, session: str) -> None:
        _patiently(
            self._client.PushObject,
            flwr.PushObjectRequest(
                node=self._node,
                run_id=self._run_id,
                object_id=name,
                object_content=data,
                session_id=session,
            ),
        )

    def _is_complete(self, name: str) -> bool:
        """Fetch what has come since; whether anything is missing."""
        partial = self._partial.get(name)
        while partial and partial.left:
            piece = partial.left[-1]
            pulled = _patiently(
                self._client.PullObject,
                flwr.PullObjectRequest(node=self._node, run_id=self._run_id, object_id=piece),
            )
            if not pulled.object_found:
                del self._partial[name]
                raise WireError("a piece of a reply is gone: its sender broke off.")
            if not pulled.object_available:
                return False
            partial.objects[piece] = pulled.object_content
            partial.left.pop()
        return partial is not None

    def _taken(self, name: str) -> Message:
        partial = self._partial.pop(name)
        _patiently(
            self._client.ConfirmMessageReceived,
            flwr.ConfirmMessageReceivedRequest(
                node=self._node, run_id=self._run_id, message_object_id=partial.tree.object_id
            ),
        )
        return flwr.whole(partial.tree, partial.objects)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def set_run(self, run: Any) -> None:
        """Not needed: a grid is of the run it was made for."""

    @property
    def run(self) -> Any:
        """Not known here."""
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        """Not used: `Message` is made by its constructor."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Not used: it would wait for the slowest."""
        raise NotImplementedError


def _patiently(call: Callable[[Request], T], request: Request) -> T:
    """Repeat a call that the SuperLink failed to do: its database is locked for a moment."""
    end = time.monotonic() + _FAULT_SECONDS
    while True:
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            if not error.response.is_server_error or time.monotonic() > end:
                raise
            time.sleep(0.2)
