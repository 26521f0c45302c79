"""All that is used of Flower beyond `flwr.app` and `flwr.serverapp`; `PRIVATE` says why.

It is a program as well, a SuperLink on a unix socket, and imports little to start without torch:

    python -m fedsieve.deploy.flower.private SOCKET DATABASE [--trial]
"""

import os
import ssl
import sys
from typing import Any, NamedTuple, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

PRIVATE = {
    "flwr.app.message": "a message is announced without its content",
    "flwr.cli.build": "a run must bring a bundle of code, even an empty one",
    "flwr.common.constant": "codes of errors",
    "flwr.common.serde": "messages as they are announced",
    "flwr.proto.control_pb2": "what operators ask: admit a key, start, stop and list runs",
    "flwr.proto.fab_pb2": "the bundle of a run",
    "flwr.proto.fleet_pb2": "what nodes ask: `flower-supernode` does so only every 3 s",
    "flwr.proto.heartbeat_pb2": "a node says that it is there",
    "flwr.proto.message_pb2": "the pieces of a message; `Grid` waits hours for one that is lost",
    "flwr.proto.node_pb2": "a node's number, and when it connected",
    "flwr.proto.runtime_pb2": "what a server process asks: take its task, send and read messages",
    "flwr.supercore.constant": "kinds of tasks",
    "flwr.supercore.control": "the client of `flwr run` and `flwr supernode register`",
    "flwr.supercore.inflatable.inflatable_object": "a message as pieces",
    "flwr.supercore.inflatable.inflatable_utils": "a message from its pieces",
    "flwr.supercore.interceptors": "how a process shows that it may have a task",
    "flwr.supercore.protobuf.client": "type of the clients",
    "flwr.supercore.runtime": "the client of server processes",
    "flwr.supercore.task_identity": "a Message is refused outside a task: this says which it is",
    "flwr.superlink.main": "`flower-superlink` has no option for a unix socket",
    "flwr.supernode.fleet_http_client": "the client of nodes",
    "flwr.supernode.node_auth_http_interceptor": "how a node shows its key",
}
__all__ = [
    "AcquireTaskRequest",
    "ActivateNodeRequest",
    "ConfirmMessageReceivedRequest",
    "ControlHttpClient",
    "DeactivateNodeRequest",
    "ErrorCode",
    "Fab",
    "FleetHttpClient",
    "GetNodesRequest",
    "ListRunsRequest",
    "Node",
    "NodeInfo",
    "ObjectTree",
    "PullAppMessagesRequest",
    "PullMessagesRequest",
    "PullObjectRequest",
    "PullTaskInputRequest",
    "PushAppMessagesRequest",
    "PushMessagesRequest",
    "PushObjectRequest",
    "RegisterNodeFleetRequest",
    "RegisterNodeRequest",
    "RuntimeHttpClient",
    "SendNodeHeartbeatRequest",
    "SendTaskHeartbeatRequest",
    "StartRunRequest",
    "StopRunRequest",
    "TaskType",
    "build_fab_from_files",
    "message_from_proto",
]
UNIX = "unix:"
_CALL_SECONDS, _KEPT_SECONDS = 30.0, 45.0  # the proxy closes what is idle for a minute
_VERSION = RuntimeVersionHttpInterceptor(component_name="fedsieve")
_Client = TypeVar("_Client", bound=ProtobufClient)


class Pieces(NamedTuple):
    """A message as it travels: announced first, then piece by piece."""

    announced: Any
    tree: ObjectTree
    objects: dict[str, bytes]


def pieces_of(message: Message) -> Pieces:
    """The pieces of a message, which gets its name from them."""
    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        objects = {name: o.deflate() for name, o in get_all_nested_objects(message).items()}
        announced = message_to_proto(remove_content_from_message(message))
        return Pieces(announced, get_object_tree(message), objects)


def names_of(tree: ObjectTree) -> list[str]:
    """The names of a message's pieces."""
    return list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))


def whole(tree: ObjectTree, objects: dict[str, bytes]) -> Message:
    """The message whose pieces these are."""
    message = inflate_object_from_contents(tree.object_id, objects)
    if not isinstance(message, Message):
        raise TypeError(f"{type(message).__name__} is no message")
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def identify(task: int, run: int, node: int) -> None:
    """Say for whom this process makes messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def control(place: str, ca: bytes | None) -> ControlHttpClient:
    """A client of operators."""
    return _client(ControlHttpClient, place, ca, [_VERSION])


def runtime(place: str, ca: bytes | None, secret: bytes = b"", token: str = "") -> Any:
    """A client of server processes: with the secret it may take tasks, with a token it has one."""
    shown: list[Any] = [_VERSION]
    if secret:
        methods = {"/flwr.proto.Runtime/AcquireTask"}
        shown += [SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)]
    if token:
        shown += [RuntimeTokenHttpInterceptor(token)]
    return _client(RuntimeHttpClient, place, ca, shown)


def fleet(place: str, ca: bytes | None, key: ec.EllipticCurvePrivateKey) -> FleetHttpClient:
    """A client of nodes."""
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    return _client(FleetHttpClient, place, ca, [_VERSION, signed])


def _client(kind: type[_Client], place: str, ca: bytes | None, shown: list[Any]) -> _Client:
    """Flower's client, on a unix socket or with connections that last from call to call."""
    is_local = place.startswith(UNIX)
    scheme = "http" if is_local or ca is None else "https"
    client = kind(f"{scheme}://{'superlink' if is_local else place}", interceptors=shown)
    client._client.close()
    if is_local:
        socket = httpx.HTTPTransport(uds=place.removeprefix(UNIX))
        client._client = httpx.Client(transport=socket, timeout=_CALL_SECONDS)
    else:
        trust = ssl.create_default_context(cadata=ca.decode()) if ca else False
        limits = httpx.Limits(keepalive_expiry=_KEPT_SECONDS)
        client._client = httpx.Client(verify=trust, limits=limits, timeout=_CALL_SECONDS)
    return client


def serve_superlink(socket: str, database: str, *, is_trial: bool) -> None:
    """Run a SuperLink that only this user's processes can reach."""
    import uvicorn  # noqa: PLC0415 - of the program alone
    from flwr.superlink.main import create_app  # noqa: PLC0415

    os.environ["FLWR_DATABASE"] = database
    app = create_app()
    app.state.enable_supernode_auth = not is_trial
    uvicorn.run(app, uds=socket, access_log=False, log_level="warning")


if __name__ == "__main__":
    serve_superlink(sys.argv[1], sys.argv[2], is_trial="--trial" in sys.argv)
