"""What travels between server and nodes: a signed call, and a signed answer to that very call.

    envelope = msgpack [body, signature]      body = msgpack of Call or Answer

A call names its job, session and round and the client it is for; an answer names the hash of the
call. So neither can be used in another place. Without keys signatures are empty (trials only).
"""

import hashlib
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from fedsieve.core.errors import WireError
from fedsieve.deploy.signature import Private, Public

# Checked before a table is read: else each byte of an answer might take a dozen in memory.
_FEW, _MANY = msgspec.Meta(max_length=2**10), msgspec.Meta(max_length=2**14)


class Hello(Struct, tag="hello", array_like=True, frozen=True):
    """The job: a node keeps it, and says what it holds."""

    config: str  # TOML
    form: tuple[str, str, tuple[int, ...], int]  # kind, layout, input shape, outputs


class TrainCall(Struct, tag="train", array_like=True, frozen=True):
    """One client's part of a round; masks and state are named, not sent."""

    version: int  # of the state to start from: the last one the server accepted
    down: bytes
    announced: tuple[int, ...]
    masks: tuple[int, ...]
    key: int


class ObserveCall(Struct, tag="observe", array_like=True, frozen=True):
    """A broadcast to a client outside the cohort."""

    version: int
    down: bytes
    masks: tuple[int, ...]


class EvaluateCall(Struct, tag="evaluate", array_like=True, frozen=True):
    """A model on the node's test shards."""

    model: bytes
    shards: tuple[int, ...]


class EvaluateOwnCall(Struct, tag="own", array_like=True, frozen=True):
    """The client's own model on test shards."""

    version: int
    server: bytes
    shards: tuple[int, ...]


class Notice(Struct, tag="notice", array_like=True, frozen=True):
    """Why a node is not taken; its operator reads it."""

    text: str


Work: TypeAlias = Hello | Notice | TrainCall | ObserveCall | EvaluateCall | EvaluateOwnCall


class Call(Struct, array_like=True, frozen=True):
    """Work for one client; (session, round) never goes back."""

    job: str
    session: int
    round: int
    client: int  # -1: whoever reads it
    work: Work


class Here(Struct, tag="here", array_like=True, frozen=True):
    """A node that is ready."""


class Trained(Struct, tag="trained", array_like=True, frozen=True):
    """A reply, less the state, which stays where it is."""

    up: bytes
    parts: tuple[int, int, int]  # bytes of header, masks and values
    paper_bytes: int
    digest: bytes  # of the new state
    values: Annotated[dict[str, float], _FEW]
    macs: tuple[int, int, int]
    seconds: float


class Saw(Struct, tag="saw", array_like=True, frozen=True):
    """A broadcast was observed."""

    digest: bytes


class Scored(Struct, tag="scored", array_like=True, frozen=True):
    """Tallies of an evaluation."""

    tallies: bytes
    shares: Annotated[dict[str, tuple[float, int]], _MANY]


class Refused(Struct, tag="refused", array_like=True, frozen=True):
    """The broadcast refers to something the node does not hold."""

    error: str


class Failed(Struct, tag="failed", array_like=True, frozen=True):
    """Work that raised; the state stays as it was."""

    error: str
    is_stranger: bool = False  # the node does not know the job: greet it again


Result: TypeAlias = Here | Trained | Saw | Scored | Refused | Failed


class Answer(Struct, array_like=True, frozen=True):
    """The result of one call."""

    call: bytes  # hash of the call's body
    client: int
    result: Result


class _Parcel(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    body: bytes
    signature: bytes


Body = TypeVar("Body", Call, Answer)
_DOMAIN = b"fedsieve envelope 1\x00"


def seal(body: Call | Answer, key: Private | None) -> bytes:
    """A envelope, signed if there is a key."""
    data = msgspec.msgpack.encode(body)
    signature = b"" if key is None else key.sign(_domain(type(body)) + data)
    return msgspec.msgpack.encode(_Parcel(data, signature))


def peek(envelope: bytes, kind: type[Body]) -> Body:
    """What a envelope says, before anyone vouches for it."""
    try:
        return msgspec.msgpack.decode(_parts(envelope).body, type=kind)
    except msgspec.MsgspecError as error:
        raise WireError(f"not a {kind.__name__.lower()}: {error}.") from error


def unseal(envelope: bytes, kind: type[Body], key: Public | None) -> Body:
    """What a envelope says.

    Raises:
        WireError: it is malformed, or not signed by the owner of `key`.
    """
    body, signature = (parts := _parts(envelope)).body, parts.signature
    if key is not None and not key.vouches(_domain(kind) + body, signature):
        raise WireError("the signature is not that of the expected sender.")
    return peek(envelope, kind)


def mark(envelope: bytes) -> bytes:
    """The hash by which an answer names its call."""
    return hashlib.blake2b(_parts(envelope).body, digest_size=16).digest()


def _parts(envelope: bytes) -> _Parcel:
    try:
        return msgspec.msgpack.decode(envelope, type=_Parcel)
    except msgspec.MsgspecError as error:
        raise WireError(f"not a envelope: {error}.") from error


def _domain(kind: type) -> bytes:
    return _DOMAIN + kind.__name__.encode() + b"\x00"
