"""Broadcasts as bytes: one message is encoded once, without what a client holds."""

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from numpy.typing import NDArray

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Dense, Natural, Number, fields
from fedsieve.core.method import AnyMethod, PerClient, message_to, message_types
from fedsieve.engine.mask_cache import MaskTable, last_version, recall, remember
from fedsieve.engine.requests import Reply
from fedsieve.metrics.bytes import Sent
from fedsieve.wire.bound import SCHEMA_BYTES, Bound
from fedsieve.wire.codec import Coding, Decoder, Known, Recall, encode, masks_of
from fedsieve.wire.compressors import EXACT, Compression
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.contexts import Contexts, contexts_of, given_fields
from fedsieve.wire.frame import Compressed, Payload, open_frame
from fedsieve.wire.inspect import Frame
from fedsieve.wire.schema import Hash, Schema, schema_of, unpacked
from fedsieve.wire.versions import CHANGES, VERSIONS, next_version, version_of

KEPT_SCHEMAS = 8  # of each direction
OPEN_SHARE = 2  # a reply's own fields against model and broadcast; the most in use is 1.25
OPEN_BYTES = 2**16  # and a little for small models


class ClientCache(NamedTuple):
    """What a client holds of earlier messages, by hash, as the server tracks it."""

    down: tuple[Hash, ...] = ()  # schemas of broadcasts, the last ones
    up: tuple[Hash, ...] = ()  # schemas of replies, the last ones
    masks: tuple[Hash, ...] = ()  # of the last exchange

    def told(self, down: Iterable[Hash] = (), up: Iterable[Hash] = ()) -> "ClientCache":
        """The cache once these schemas have been used; an older one may be forgotten."""
        return self._replace(down=_newest(self.down, down), up=_newest(self.up, up))


def _newest(held: tuple[Hash, ...], more: Iterable[Hash]) -> tuple[Hash, ...]:
    return tuple(dict.fromkeys((*more, *reversed(held))))[:KEPT_SCHEMAS][::-1]


ClientCaches: TypeAlias = dict[int, ClientCache]


class EncodedBroadcast(NamedTuple):
    """A broadcast to one client."""

    payload: Payload
    paper_bytes: int
    schema: bytes  # packed
    is_told: bool  # the client remembers the schema, and the frame does not announce it
    digest: frozenset[Hash]  # the schema's hash; empty for a message without fields
    masks: dict[Hash, NDArray[Any]]  # that the client holds once it has read it
    contexts: Contexts = MappingProxyType({})  # of the bits in its reply


def held_at_start(method: AnyMethod, seed: int, down: Compression) -> Recall:
    """What both ends hold before the first message: the start is a function of the seed."""
    if not isinstance(down, Lattice):
        return {}
    server = method.init_server(fold(seed, "init"))
    message = method.broadcast(server, fold(seed, "broadcast", 1))
    if not message or isinstance(message, PerClient):
        return {}
    return held_of(next_version(message, None, down), down)


class BroadcastEncoder:
    """Encodes the broadcasts of one round."""

    def __init__(
        self,
        method: AnyMethod,
        server: Any,
        key: Key,
        compression: Compression,
        table: MaskTable,
        caches: Iterable[ClientCache] = (),
        start: Recall = MappingProxyType({}),
    ) -> None:
        self._method, self._broadcast = method, method.broadcast(server, key)
        self._up_kind = message_types(method)[1]
        if isinstance(compression, Lattice) and self._broadcast:
            if isinstance(self._broadcast, PerClient):
                raise ConfigError(
                    "down=lattice: this method sends every client a message of its own, of which "
                    "there are no versions. Use down=bf16 or int8."
                )
            last = last_version({**remember({}, start), **table})
            self._broadcast = next_version(self._broadcast, last, compression)
        # Masks that all hold are enough: one coding for all, where each one's own would need many.
        held = [set(_of_broadcasts(client_cache)) for client_cache in caches]
        self._common = set.intersection(*held) if held else set[Hash]()
        self._coding = Coding(compression, fold(key, "wire"))
        self._table, self._start = table, start
        self._last: Any = None
        self._read: tuple[Any, Any] = (None, None)
        self._masks: dict[Hash, NDArray[Any]] = {}
        self._encoded: dict[tuple[bool, bool, tuple[Hash, ...]], EncodedBroadcast] = {}

    def encoded(
        self, client: int, client_cache: ClientCache, *, has_start: bool = True
    ) -> EncodedBroadcast:
        """The message for `client`, without what it holds already."""
        message = self.message(client)
        if message is not self._last:
            self._last, self._encoded = message, {}
            self._masks = held_of(message, self._coding.compression) if message else {}
        if not message:
            return EncodedBroadcast(encode(message), 0, b"", True, frozenset(), {})  # noqa: FBT003
        schema, digest = schema_of(message)
        is_told = digest in client_cache.down
        held = _of_broadcasts(client_cache) if self._masks else ()
        if self._common.issubset(held):
            own = tuple(digest for digest in held if digest >= VERSIONS)
            held = (*sorted(self._common - {*own}), *own) or held
        form = is_told, has_start, held
        if form not in self._encoded:
            start = self._start if has_start else {}
            known = Known(frozenset(client_cache.down), {**start, **recall(self._table, held)})
            payload = encode(message, known, self._coding)
            self._encoded[form] = EncodedBroadcast(
                payload,
                self._method.paper_bytes(message),
                schema.packed(),
                is_told,
                frozenset({digest}),
                self._masks,
                self._contexts(message, payload, known),
            )
        return self._encoded[form]

    def _contexts(self, message: Any, payload: Payload, known: Known) -> Contexts:
        """How likely the bits of a reply are by the message as its client reads it."""
        if given_fields(self._up_kind) and not self._arrives_as_it_is:
            decoder = Decoder()
            decoder.learn(schema_of(message)[0].packed())
            message = decoder.decode(payload.data, type(message), known.masks)
        return contexts_of(self._up_kind, message)

    def message(self, client: int) -> Any:
        """The broadcast to `client` as the server holds it."""
        return message_to(client, self._broadcast)

    def arrived(self, client: int) -> Any:
        """The message for `client` as it reads it: rounded where the wire rounds."""
        message = self.message(client)
        if self._arrives_as_it_is or not message:
            return message
        if message is not self._read[0]:
            whole = self.encoded(client, ClientCache()).payload.data
            self._read = message, Decoder().decode(whole, type(message))
        return self._read[1]

    @property
    def _arrives_as_it_is(self) -> bool:
        """Whether a client reads the very values that the server holds, which may be rounded."""
        how = self._coding.compression
        return how == EXACT or isinstance(how, Lattice)


def _of_broadcasts(client_cache: ClientCache) -> tuple[Hash, ...]:
    """What a broadcast may refer to: all but the client's own last change."""
    return tuple(digest for digest in client_cache.masks if digest < CHANGES)


def held_of(message: Any, compression: Compression) -> dict[Hash, NDArray[Any]]:
    """What both ends hold once a broadcast has arrived: its masks, and its version if it is one."""
    masks = masks_of(message)
    return {**masks, **version_of(message)} if isinstance(compression, Lattice) else {**masks}


class _Model(NamedTuple):
    weights: Dense


def dense_schema(method: AnyMethod, key: Key) -> Schema:
    """The method's whole model as if it were sent."""
    return schema_of(_Model(method.task.init_params(key)))[0]


def bound_of(
    encoded: EncodedBroadcast, kind: type, dense: Callable[[], Schema], up: Compression
) -> Bound:
    """The bound on tensors and bytes of a reply of class `kind` to a broadcast.

    A field that both have has the same tensors. Fields that a broadcast does not have, or has
    without tensors, as before the first reply, take a few times as much as it and the whole model.
    """
    sent = unpacked(encoded.schema) if encoded.schema else Schema(())
    tensors = {f.name for f in fields(kind) if not isinstance(f.role, Number | Natural)}
    asked = {p.name: frozenset(p.entries) for p in sent.parts if p.entries and p.name in tensors}
    room, names = 0, len(encoded.schema)
    if tensors - asked.keys():
        model = dense()
        room = OPEN_BYTES + OPEN_SHARE * (sent.tensor_bytes() + model.tensor_bytes())
        names += OPEN_SHARE * len(model.packed())
    return Bound(room, asked, SCHEMA_BYTES + 2 * names, up)


def frames_of(
    number: int, reply: Reply, up: Any, encoded: EncodedBroadcast, held: dict[Hash, NDArray[Any]]
) -> list[Frame]:
    """The two messages of an exchange with all that is needed to read them."""
    if not reply.up.data or not encoded.payload.data:
        return []
    packed = tuple((digest, *mask) for digest, mask in remember({}, held | encoded.masks).items())
    is_answer = isinstance(open_frame(reply.up.data).header.precision, Compressed)
    return [
        Frame(
            round=number,
            client=reply.client,
            direction=direction,
            schema=schema,
            masks=packed,
            data=payload.data,
            base_schema=encoded.schema if direction == "up" and is_answer else b"",
            base_data=encoded.payload.data if direction == "up" and is_answer else b"",
            contexts={
                field: {name: bins.tobytes() for name, bins in tensors.items()}
                for field, tensors in encoded.contexts.items()
                if direction == "up"
            },
        )
        for direction, schema, payload in _directions(reply, up, encoded)
    ]


def _directions(
    reply: Reply, up: Any, encoded: EncodedBroadcast
) -> list[tuple[Literal["up", "down"], bytes, Payload]]:
    told = schema_of(up)[0].packed()
    return [("down", encoded.schema, encoded.payload), ("up", told, reply.up)]


def sent(
    number: int, client: int, direction: Literal["up", "down"], payload: Payload, paper_bytes: int
) -> Sent:
    """Record of a payload of round `number`: its bytes by part."""
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
