"""A node's connection to the SuperLink: by its key, kept alive, one message at a time.

Flower's own program for this, `flower-supernode`, asks only every 3 s, and hands over a reply only
after the next message has come: one reply out of turn, and all that follow are a message late.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.app import Message

from fedsieve.deploy.flower import private as flwr
from fedsieve.deploy.signature import Private
from fedsieve.engine import disk

log = logging.getLogger("fedsieve")
logging.getLogger("flwr").setLevel(logging.WARNING)
HEARTBEAT_SECONDS = 30.0  # a node that is silent twice as long is taken for gone
_AGAIN_SECONDS = 0.5
_PIECE_SECONDS = 30.0  # for the next piece of a message whose sender may have gone
_HELD_SECONDS = 0.5  # an empty answer that comes sooner was not held by our proxy
_IDLE_SECONDS = (0.25, 3.0)
T = TypeVar("T")


class Fleet:
    """A node's calls to a SuperLink.

    Args:
        server: host:port.
        ca: None is a trial without TLS, in which nodes admit themselves.
        home: folder in which the node's number is kept: with it a node that was killed is back
            at once, where the SuperLink would wait for its heartbeat to end.
    """

    def __init__(self, server: str, ca: bytes | None, key: Private, home: Path) -> None:
        self._is_trial = ca is None
        self._client = flwr.fleet(server, ca, key.key)
        self._pem = key.public.key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._path = home / "connection.json"
        self._node: int | None = None
        self._stop, self._pause = threading.Event(), _IDLE_SECONDS[0]
        threading.Thread(target=self._beat, daemon=True).start()

    def pull(self) -> Message | None:
        """The next message; None if there is none yet."""
        node = flwr.Node(node_id=self._joined())
        start = time.monotonic()
        pulled = self._client.PullMessages(flwr.PullMessagesRequest(node=node))
        if pulled.messages_list:
            self._pause = _IDLE_SECONDS[0]
            announced = flwr.message_from_proto(pulled.messages_list[0])
            return self._whole(announced, pulled.message_object_trees[0], node)
        if time.monotonic() - start < _HELD_SECONDS:
            self._stop.wait(self._pause)
            self._pause = min(self._pause * 1.1, _IDLE_SECONDS[1])
        return None

    def reply(self, message: Message, seconds: float) -> bool:
        """Send a reply, again and again for `seconds`; whether it came in time."""
        end = time.monotonic() + seconds
        announced, tree, objects = flwr.pieces_of(message)
        node = flwr.Node(node_id=self._joined())
        request = flwr.PushMessagesRequest(
            node=node,
            messages_list=[announced],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )
        response = _again(lambda: self._client.PushMessages(request), end)
        for name in response.objects_to_push:
            piece = flwr.PushObjectRequest(
                node=node,
                run_id=message.metadata.run_id,
                object_id=name,
                object_content=objects[name],
                session_id=response.session_id,
            )
            _again(lambda piece=piece: self._client.PushObject(piece), end)  # type: ignore[misc]
        return bool(response.objects_to_push)

    def rejoin(self) -> None:
        """Connect anew before the next call: what was under way may be lost, and is sent again."""
        self._node = None

    def leave(self) -> None:
        """Disconnect."""
        self._stop.set()
        try:
            if self._node is not None:
                self._client.DeactivateNode(flwr.DeactivateNodeRequest(node_id=self._node))
        except httpx.HTTPError as error:
            log.debug("left without a word: %s", error)

    def _joined(self) -> int:
        if self._node is None:
            if self._is_trial:
                self._ask(
                    self._client.RegisterNode, flwr.RegisterNodeFleetRequest(public_key=self._pem)
                )
            if (before := self._kept()) is not None:
                self._ask(self._client.DeactivateNode, flwr.DeactivateNodeRequest(node_id=before))
            wanted = flwr.ActivateNodeRequest(
                public_key=self._pem, heartbeat_interval=HEARTBEAT_SECONDS
            )
            node = int(self._client.ActivateNode(wanted).node_id)
            disk.write(self._path, json.dumps({"key": self._pem.decode(), "node": node}).encode())
            self._node = node
        return self._node

    def _ask(self, call: Callable[[T], object], request: T) -> None:
        """A call that may be refused: it was done already."""
        try:
            call(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise

    def _kept(self) -> int | None:
        try:
            kept = json.loads(self._path.read_text())
            return int(kept["node"]) if kept["key"] == self._pem.decode() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _whole(self, announced: Message, tree: flwr.ObjectTree, node: flwr.Node) -> Message:
        run, objects = announced.metadata.run_id, dict[str, bytes]()
        end = time.monotonic() + _PIECE_SECONDS
        for name in flwr.names_of(tree):
            wanted = flwr.PullObjectRequest(node=node, run_id=run, object_id=name)
            while name not in objects:
                pulled = _again(lambda w=wanted: self._client.PullObject(w), end)  # type: ignore[misc]
                if pulled.object_available:
                    objects[name] = pulled.object_content
                    end = time.monotonic() + _PIECE_SECONDS
                elif time.monotonic() > end or not pulled.object_found:
                    raise BrokenError("the rest of a message never came; its sender has gone")
                else:
                    time.sleep(0.1)
        received = flwr.ConfirmMessageReceivedRequest(
            node=node, run_id=run, message_object_id=tree.object_id
        )
        _again(lambda: self._client.ConfirmMessageReceived(received), end)
        return flwr.whole(tree, objects)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS / 2):
            if (number := self._node) is None:
                continue
            node = flwr.Node(node_id=number)
            beat = flwr.SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_SECONDS)
            try:
                self._client.SendNodeHeartbeat(beat)
            except (httpx.HTTPError, RuntimeError) as error:
                log.debug("no heartbeat: %s", error)


class BrokenError(Exception):
    """A message of which only a part came."""


def _again(call: Callable[[], T], end: float) -> T:
    """Repeat a call that is safe to repeat until the connection is back, or time is up."""
    while True:
        try:
            return call()
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
                raise
            if time.monotonic() > end:
                raise
            time.sleep(_AGAIN_SECONDS)
