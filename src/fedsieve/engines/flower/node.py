"""A node's tasks: taken from its SuperNode one by one, answered in this process, given back."""

import logging
import time
from collections.abc import Callable

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedsieve.core.errors import WireError
from fedsieve.engines.flower.carrier import pack, unpack
from fedsieve.engines.flower.task import Tasks, alive

log = logging.getLogger("fedsieve")
_POLL_SECONDS = 0.2


def serve(
    address: str, secret: bytes, answer: Callable[[bytes], bytes], is_over: Callable[[], bool]
) -> None:
    """Answer what the SuperNode at `address` has received, until `is_over`."""
    tasks = Tasks(address, None, secret)
    while not is_over():
        try:
            token, _ = tasks.take(TaskType.CLIENT_APP)
        except httpx.HTTPError as error:  # the SuperNode starts, or starts again
            log.debug("no task: %s", error)
            token = ""
        if not token:
            time.sleep(_POLL_SECONDS)
            continue
        try:
            with tasks.work(token) as client, alive(client):
                _handle(client, answer)
        except Exception as error:  # noqa: BLE001 - one task that is lost must not end the node
            log.warning("a task is lost: %s: %s", type(error).__name__, error)


def _handle(client: RuntimeHttpClient, answer: Callable[[bytes], bytes]) -> None:
    message, context, _, _ = pull_task_input(client)
    try:
        reply = Message(pack(answer(unpack(message.content))), reply_to=message)
    except WireError as error:  # nobody who may ask: no answer but that
        log.warning("a message was turned away: %s", error)
        fault = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="not a signed call")
        reply = Message(fault, reply_to=message)
    push_message(client, reply, context)
    push_task_output(client, context, SubStatus.COMPLETED, "")
