"""A node's tasks: taken from its SuperNode one by one, answered in this process, given back."""

import logging
import threading
import time
from collections.abc import Callable

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedsieve.core.errors import WireError
from fedsieve.engines.flower.carrier import pack, unpack

log = logging.getLogger("fedsieve")
_VERSION = RuntimeVersionHttpInterceptor(component_name="fedsieve")
_HEARTBEAT_SECONDS = 15
_POLL_SECONDS = 0.2


def serve(
    address: str, secret: bytes, answer: Callable[[bytes], bytes], is_over: Callable[[], bool]
) -> None:
    """Answer what the SuperNode at `address` has received, until `is_over`."""
    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    client = RuntimeHttpClient.from_server_address(address, True, None, [_VERSION, signed])  # noqa: FBT003
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while not is_over():
        try:
            found = client.AcquireTask(wanted)
            if found.token:
                _handle(address, found.token, answer)
                continue
        except httpx.HTTPError as error:  # the SuperNode starts, or starts again
            log.debug("no task: %s", error)
        time.sleep(_POLL_SECONDS)


def _handle(address: str, token: str, answer: Callable[[bytes], bytes]) -> None:
    owned = RuntimeTokenHttpInterceptor(token)
    client = RuntimeHttpClient.from_server_address(address, True, None, [_VERSION, owned])  # noqa: FBT003
    message, context, _, _ = pull_task_input(client)
    stop = threading.Event()
    threading.Thread(target=_beat, args=(client, stop), daemon=True).start()
    try:
        reply = Message(pack(answer(unpack(message.content))), reply_to=message)
    except WireError as error:  # nobody who may ask: no answer but that
        log.warning("a message was turned away: %s", error)
        fault = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="not a signed call")
        reply = Message(fault, reply_to=message)
    finally:
        stop.set()
    push_message(client, reply, context)
    push_task_output(client, context, SubStatus.COMPLETED, "")


def _beat(client: RuntimeHttpClient, stop: threading.Event) -> None:
    while not stop.wait(_HEARTBEAT_SECONDS):
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPError as error:
            log.debug("no heartbeat: %s", error)
