"""The server's side of the links: what goes to each client, encoded once where it is the same."""

from typing import Any, Literal, NamedTuple, TypeAlias

from fedsieve.core.keys import Key
from fedsieve.core.method import AnyMethod
from fedsieve.ledger.bytes import Sent
from fedsieve.wire.codec import encode
from fedsieve.wire.frame import Payload
from fedsieve.wire.schema import Hash, schema_of


class Link(NamedTuple):
    """Which schemas both ends of a client's link know already, by hash."""

    down: frozenset[Hash] = frozenset()
    up: frozenset[Hash] = frozenset()


Links: TypeAlias = dict[int, Link]


class Letter(NamedTuple):
    """A broadcast to one client."""

    payload: Payload
    paper_bytes: int
    schema: bytes  # what the client remembers of it; b"" where the frame announces it
    mark: frozenset[Hash]  # the schema's hash; empty for a message without fields


class Post:
    """Letters of one round."""

    def __init__(self, method: AnyMethod, server: Any, key: Key) -> None:
        self._method, self._server, self._key = method, server, key
        self._last: Any = None
        self._letters: dict[bool, Letter] = {}

    def letter(self, client: int, link: Link) -> Letter:
        """The message for `client`, announcing its schema where the link has not seen it."""
        message = self._method.broadcast(self._server, client, self._key)
        if self._last is None or not _is_same(message, self._last):
            self._last, self._letters = message, {}
        if not message:
            return Letter(encode(message), 0, b"", frozenset())
        schema, mark = schema_of(message)
        is_told = mark in link.down
        if is_told not in self._letters:
            self._letters[is_told] = Letter(
                encode(message, link.down),
                self._method.paper_bytes(message),
                schema.packed() if is_told else b"",
                frozenset({mark}),
            )
        return self._letters[is_told]


def sent(
    number: int, client: int, direction: Literal["up", "down"], payload: Payload, paper_bytes: int
) -> Sent:
    """The ledger's line for a payload of round `number`."""
    return Sent(
        round=number,
        client=client,
        direction=direction,
        total_bytes=len(payload.data),
        header_bytes=payload.header_bytes,
        mask_bytes=payload.mask_bytes,
        value_bytes=payload.value_bytes,
        paper_bytes=paper_bytes,
    )


def _is_same(a: Any, b: Any) -> bool:
    """Whether two messages share their tensors, so that their bytes must be equal."""
    return type(a) is type(b) and all(
        x is y or (isinstance(x, int | float) and x == y) for x, y in zip(a, b, strict=True)
    )
