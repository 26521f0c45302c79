"""Requests and responses as bytes: one encoding for pipes and networks.

    message = header, blobs      header = msgpack [kind, fields]      blob = bytes or safetensors

It follows from the annotations of the classes in `requests`. Who decodes does not trust who has
encoded: types and bounds are checked, and the error names the field.
"""

import re
from collections.abc import Iterator
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_type_hints,
)

import msgspec
import safetensors
import torch
from msgspec import Meta

from fedsieve.core.errors import WireError
from fedsieve.core.message import Params
from fedsieve.engine import blob
from fedsieve.engine.requests import Amount, Blob, Message, Request, Response, check_values
from fedsieve.engine.store import Receipt
from fedsieve.wire.frame import Payload

M = TypeVar("M", Request, Response)
Held: TypeAlias = dict[str, Any]  # the last value of every shared field, by its name
PackedOnce: TypeAlias = dict[str, tuple[Any, bytes]]  # the same with its bytes


class Encoded(msgspec.Struct, tag="message", array_like=True, frozen=True):
    """A request or response as bytes."""

    header: bytes
    blobs: Annotated[tuple[bytes, ...], Meta(max_length=3)]


class Kinds(NamedTuple):
    """Types of what a message holds; `state` is Receipt where states stay with their owners."""

    state: Any
    server: Any = None


def encode(message: Message, packed: PackedOnce | None = None) -> Encoded:
    """The message as bytes, complete in itself; arguments as in `parts`."""
    header, *blobs = parts(message, packed)
    return Encoded(header, tuple(blobs))


def parts(
    message: Message, packed: PackedOnce | None = None, held: Held | None = None
) -> Iterator[bytes]:
    """Header and blobs of a message, each made when it is needed.

    Args:
        message: a request or a response.
        packed: bytes of shared fields, kept between messages so that they are made once.
        held: what the receiver was sent before and remembers: it is left out, and `held` brought
            up to date. None for a receiver that may have forgotten.
    """
    table = _TABLES[type(message)]
    slots, blobs = list[Any](message), list[tuple[str, Blob, Any]]()
    for place, name, role in table.blobs:
        value = message[place]
        slots[place] = slot = _slot(role, value)
        if slot is False or type(value) is Receipt:
            continue
        if role.is_shared and held is not None:
            if name in held and held[name] is value:
                slots[place] = False
                continue
            held[name] = value
        blobs.append((name, role, value))
    yield _ENCODER.encode(table.header(*slots))
    for name, role, value in blobs:
        if not role.is_shared or packed is None:
            yield _packed(role, value)
            continue
        if name not in packed or packed[name][0] is not value:
            packed[name] = value, _packed(role, value)
        yield packed[name][1]


class Decoder(Generic[M]):
    """Decodes messages of some kinds; no other one is read."""

    def __init__(self, *kinds: Any) -> None:
        self._tables = {_TABLES[kind].header: _TABLES[kind] for kind in kinds}
        self._headers = msgspec.msgpack.Decoder(Union[tuple(self._tables)])  # noqa: UP007

    def decode(self, encoded: Encoded, kinds: Kinds) -> M:
        """The message in `encoded`, complete in itself.

        Raises:
            WireError: it is not a message, or its values are impossible.
        """
        blobs = iter(encoded.blobs)
        message = self.read(encoded.header, blobs, kinds)
        if next(blobs, None) is not None:
            raise WireError(f"{type(message).__name__}: more blobs than it has fields for.")
        return message

    def read(
        self, header: bytes, blobs: Iterator[bytes], kinds: Kinds, held: Held | None = None
    ) -> M:
        """The message with this header, from a sender that leaves out what is `held`.

        Blobs are taken from the iterator as they are needed, and `held` is brought up to date.

        Raises:
            WireError: it is not a message, or its values are impossible.
        """
        try:
            slots = self._headers.decode(header)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"not what was expected: {_named(str(error), header)}.") from error
        table = self._tables[type(slots)]
        values = list(msgspec.structs.astuple(slots))
        for place, name, role in table.blobs:
            where, slot = f"{table.kind.__name__}.{name}", values[place]
            if role.is_shared and slot is False:
                if held is None or name not in held:
                    raise WireError(f"{where}: it was not sent.")
                values[place] = held[name]
                continue
            values[place] = value = _unpacked(where, role, slot, blobs, kinds)
            if role.is_shared and held is not None:
                held[name] = value
        message: M = table.kind._make(values)
        check_values(message)
        return message


class _Table(NamedTuple):
    """How a kind of message is encoded."""

    kind: Any
    blobs: list[tuple[int, str, Blob]]  # fields beside the header: place, name and role
    header: Any  # a struct with a slot for each field


def _table(kind: Any) -> _Table:
    hints = get_type_hints(kind, include_extras=True)
    roles = {name: _role(hint) for name, hint in hints.items()}
    slots = [(name, _SLOTS.get(r.holds, bool) if r else hints[name]) for name, r in roles.items()]
    header = msgspec.defstruct(
        kind.__name__, slots, tag=True, array_like=True, frozen=True, forbid_unknown_fields=True
    )
    blobs = [(place, name, r) for place, (name, r) in enumerate(roles.items()) if r]
    return _Table(kind, blobs, header)


def _role(hint: Any) -> Blob | None:
    annotations = getattr(hint, "__metadata__", ())
    return next((a for a in annotations if isinstance(a, Blob)), None)


# A slot says whether a blob follows: none does for a shared value that is held, or an empty tree.
# That of a payload has the sizes of its parts, and that of a receipt all of it.
_SLOTS: dict[str, Any] = {
    "payload": tuple[Amount, Amount, Amount],
    "state": bool | tuple[Amount, Annotated[bytes, Meta(min_length=16, max_length=16)]],
}
_TABLES = {kind: _table(kind) for kind in get_args(Request) + get_args(Response)}
_ENCODER = msgspec.msgpack.Encoder()
REQUESTS: Decoder[Request] = Decoder(*get_args(Request))
RESPONSES: Decoder[Response] = Decoder(*get_args(Response))


def _slot(role: Blob, value: Any) -> Any:
    """What stands in the header for a field with a blob."""
    if role.holds == "payload":
        return value[1:]
    if isinstance(value, Receipt):
        return value.version, value.digest.numpy().tobytes()
    return role.is_shared or role.holds == "tensor" or bool(value)


def _packed(role: Blob, value: Any) -> bytes:
    match role.holds:
        case "bytes":
            return bytes(value)
        case "payload":
            return bytes(value.data)
    return blob.pack({"tensor": value} if role.holds == "tensor" else value)


def _unpacked(where: str, role: Blob, slot: Any, blobs: Iterator[bytes], kinds: Kinds) -> Any:
    """A field from what stands for it in the header, and its blob."""
    kind = kinds.state if role.holds == "state" else kinds.server
    if role.holds == "state" and (kind is Receipt or type(slot) is not bool):
        return _receipt(where, slot, kind)
    if slot is False:
        return kind() if role.holds == "state" else {}
    if role.holds == "params" and not role.is_shared and kinds.state is Receipt:
        raise WireError(f"{where}: it stays with its owner.")
    if (data := next(blobs, None)) is None:
        raise WireError(f"{where}: its blob is missing.")
    if role.holds == "bytes":
        return data
    if role.holds == "payload":
        if sum(slot) != len(data):
            raise WireError(f"{where}: {len(data)} bytes were sent, it counts {sum(slot)}.")
        return Payload(data, *slot)
    try:
        if role.holds == "tensor":
            return blob.unpack(Params, data)["tensor"]
        return blob.unpack(Params if role.holds == "params" else kind, data)
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"{where}: not what belongs there ({error}).") from error


def _receipt(where: str, slot: Any, kind: Any) -> Receipt:
    if kind is not Receipt or type(slot) is bool:
        raise WireError(f"{where}: expected {'a receipt' if kind is Receipt else 'a state'}.")
    version, digest = slot
    return Receipt(version, torch.tensor(list(digest), dtype=torch.uint8))


def _named(error: str, header: bytes) -> str:
    """The error of a header with the name of its field in place of the number."""
    place = re.search(r"\$\[(\d+)\]", error)
    try:
        items = msgspec.msgpack.decode(header, type=_Items)
        tag = msgspec.msgpack.decode(items[0], type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        return error
    fields = {kind.__name__: kind._fields for kind in _TABLES}.get(tag)
    if not place or not fields or not 0 < int(place[1]) <= len(fields):
        return error
    return error.replace(place[0], f"{tag}.{fields[int(place[1]) - 1]}", 1)


_Items: TypeAlias = Annotated[tuple[msgspec.Raw, ...], Meta(max_length=16)]
