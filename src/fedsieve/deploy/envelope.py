"""Envelopes between server and nodes: a signed call, and a signed answer to that very call.

    envelope = msgpack [version, body, signature]      body = msgpack of Call or Answer

A call names its job, session and round and the client it is for; an answer names the hash of the
call. So neither can be used in another place. Without keys signatures are empty (trials only).
"""

import hashlib
import re
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from fedsieve.core.errors import WireError
from fedsieve.deploy.signature import Private, Public
from fedsieve.engine.request_encoding import Encoded


class Hello(Struct, tag="hello", array_like=True, frozen=True):
    """The description of a job; a node keeps it."""

    config: str  # TOML
    form: tuple[str, str, tuple[int, ...], int]  # kind, layout, input shape, outputs


class Refused(Struct, tag="notice", array_like=True, frozen=True):
    """Why a node is not accepted, for its operator."""

    text: str


Work: TypeAlias = Hello | Refused | Encoded  # a request


class Call(Struct, array_like=True, frozen=True):
    """Work for one client; (session, round) never goes back."""

    job: str
    session: int
    round: int
    client: int  # -1: whoever reads it
    work: Work


class Ready(Struct, tag="here", array_like=True, frozen=True):
    """The node is ready."""


class UnknownJob(Struct, tag="unknown", array_like=True, frozen=True):
    """The node does not know the job: greet it again."""


Result: TypeAlias = Ready | UnknownJob | Encoded  # a response


class Answer(Struct, array_like=True, frozen=True):
    """The result of one call."""

    call: bytes  # hash of the call's body
    client: int
    result: Result


class _Envelope(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: int
    body: bytes
    signature: bytes


Body = TypeVar("Body", Call, Answer)
VERSION = 2  # of envelopes, and of requests and responses in them


def seal(body: Call | Answer, key: Private | None) -> bytes:
    """An envelope, signed if there is a key."""
    data = msgspec.msgpack.encode(body)
    signature = b"" if key is None else key.sign(_domain(type(body)) + data)
    return msgspec.msgpack.encode(_Envelope(VERSION, data, signature))


def peek(envelope: bytes, kind: type[Body]) -> Body:
    """The body of an envelope, not verified."""
    try:
        return msgspec.msgpack.decode(_parts(envelope).body, type=kind)
    except msgspec.MsgspecError as error:
        raise WireError(f"not a {kind.__name__.lower()}: {error}.") from error


def unseal(envelope: bytes, kind: type[Body], key: Public | None) -> Body:
    """The body of an envelope, verified.

    Raises:
        WireError: it is malformed, or not signed by the owner of `key`.
    """
    body, signature = (parts := _parts(envelope)).body, parts.signature
    if key is not None and not key.verifies(_domain(kind) + body, signature):
        raise WireError("the signature is not that of the expected sender.")
    return peek(envelope, kind)


def digest(envelope: bytes) -> bytes:
    """The hash by which an answer names its call."""
    return hashlib.blake2b(_parts(envelope).body, digest_size=16).digest()


def _parts(envelope: bytes) -> _Envelope:
    try:
        parts = msgspec.msgpack.decode(envelope, type=_Envelope)
    except msgspec.MsgspecError as error:
        if re.match(rb"\x92[\xc4-\xc6]", envelope):  # [body, signature]
            raise _other_version(1) from error
        raise WireError(f"not an envelope: {error}.") from error
    if parts.version != VERSION:
        raise _other_version(parts.version)
    return parts


def _other_version(version: int) -> WireError:
    return WireError(
        f"the envelope is of version {version}, expected {VERSION}: server and nodes run different "
        "versions of fedsieve. Install the same one on all of them."
    )


def _domain(kind: type) -> bytes:
    return f"fedsieve envelope {VERSION}\0{kind.__name__}\0".encode()
