"""A transport over Flower's grid: one blob per message, answers by the message they answer."""

import logging
from collections.abc import Callable, Iterable, Mapping

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsieve.core.errors import WireError
from fedsieve.deploy.flower.private import ErrorCode
from fedsieve.deploy.open_calls import Arrived, LostError

log = logging.getLogger("fedsieve")
_NAME, _STYPE = "fedsieve", "fedsieve.envelope"
_LARGE_BYTES = 2**20  # Flower cuts arrays into pieces, but sends a configuration in one


def pack(envelope: bytes) -> RecordDict:
    """An envelope as the only record of a message."""
    if len(envelope) < _LARGE_BYTES:
        return RecordDict({_NAME: ConfigRecord({_NAME: envelope})})
    array = Array("uint8", (len(envelope),), _STYPE, envelope)
    return RecordDict({_NAME: ArrayRecord({_NAME: array})})


def unpack(content: RecordDict) -> bytes:
    """The envelope in a message.

    Raises:
        WireError: the message is none of ours.
    """
    record = content.get(_NAME)
    value = record.get(_NAME) if isinstance(record, ConfigRecord | ArrayRecord) else None
    if isinstance(value, bytes):
        return value
    if isinstance(value, Array) and value.stype == _STYPE:
        return value.data
    raise WireError("the message holds no envelope.")


class GridTransport:
    """Envelopes over a grid, and over a new one when the connection is lost.

    Args:
        connect: makes a grid.
        wake: tells whoever waits for nodes that there is something to fetch.
    """

    def __init__(
        self, connect: Callable[[], Grid], wake: Callable[[], None] = lambda: None
    ) -> None:
        self._connect, self._wake = connect, wake
        self._grid = connect()
        self._is_wary = False  # some node sends what Flower itself cannot read

    def nodes(self) -> dict[int, str]:
        try:
            return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}
        except httpx.HTTPError as error:
            raise self._lost(error) from error

    def push(self, envelopes: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        messages = [
            Message(pack(envelope), dst_node_id=node, message_type="train", ttl=seconds)
            for node, envelope in envelopes.items()
        ]
        try:
            names = list(self._grid.push_messages(messages))
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        self._wake()
        return {name: node for name, node in zip(names, envelopes, strict=True) if name}

    def pull(self, messages: Iterable[str]) -> list[Arrived]:
        groups = [[name] for name in messages] if self._is_wary else [list(messages)]
        return [arrived for group in groups for arrived in self._pulled(group)]

    def _pulled(self, names: list[str]) -> list[Arrived]:
        try:
            return [_arrived(reply) for reply in self._grid.pull_messages(names)]
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        except Exception as error:
            # Flower fails for all answers of a call together, and has forgotten them by then.
            if self._is_wary:
                return [Arrived(names[0], b"", f"its message cannot be read: {error}")]
            self._is_wary = True
            raise LostError(f"some answer cannot be read ({error})") from error

    def _lost(self, error: httpx.HTTPError) -> LostError:
        log.warning("the SuperLink does not answer (%s); connecting again", error)
        self._grid = self._connect()
        return LostError(str(error))


def _arrived(reply: Message) -> Arrived:
    # Not the sender's number: for a node that is gone the SuperLink answers in its place.
    name = reply.metadata.reply_to_message_id
    if reply.has_error():
        reason = f"Flower error {reply.error.code}: {reply.error.reason}"
        return Arrived(name, b"", reason, reply.error.code == ErrorCode.NODE_UNAVAILABLE)
    try:
        return Arrived(name, unpack(reply.content))
    except WireError as error:
        return Arrived(name, b"", str(error))
