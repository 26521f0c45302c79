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
from fedsieve.engines.remote.patience import wait_for

log = logging.getLogger("fedsieve")
_POLL_SECONDS = 0.2


def serve(
    address: str, secret: bytes, answer: Callable[[bytes], bytes], is_over: Callable[[], bool]
) -> None:
    """Answer what the SuperNode at `address` has received, until `is_over`."""
    tasks, waiting = Tasks(address, None, secret), list[str]()

    def is_waiting() -> bool:
        try:
            token = "" if waiting else tasks.take(TaskType.CLIENT_APP)[0]
        except httpx.HTTPError as error:  # the SuperNode starts, or starts again
            log.debug("no task: %s", error)
            token = ""
        waiting.extend([token] if token else [])
        return bool(waiting)

    while not is_over():
        if not is_waiting():
            time.sleep(_POLL_SECONDS)
            continue
        try:
            with tasks.work(waiting.pop()) as client, alive(client):
                _handle(client, answer, lambda: is_over() or is_waiting())
        except Exception as error:  # noqa: BLE001 - one task that is lost must not end the node
            log.warning("a task is lost: %s: %s", type(error).__name__, error)


def _handle(
    client: RuntimeHttpClient, answer: Callable[[bytes], bytes], is_void: Callable[[], bool]
) -> None:
    # Of a server that has gone the rest of a message never comes; that of the next one does.
    message, context, _, _ = wait_for(lambda: pull_task_input(client), is_void)
    try:
        reply = Message(pack(answer(unpack(message.content))), reply_to=message)
    except WireError as error:  # nobody who may ask: no answer but that
        log.warning("a message was turned away: %s", error)
        fault = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="not a signed call")
        reply = Message(fault, reply_to=message)
    push_message(client, reply, context)
    push_task_output(client, context, SubStatus.COMPLETED, "")
