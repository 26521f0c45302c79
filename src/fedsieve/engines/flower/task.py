"""Tasks of Flower: taken by whoever has the secret, and kept alive while they are worked on."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.runtime import RuntimeHttpClient

log = logging.getLogger("fedsieve")
FLOWER_LOGGER.setLevel(logging.WARNING)
VERSION = RuntimeVersionHttpInterceptor(component_name="fedsieve")
_HEARTBEAT_SECONDS = 15


class Tasks:
    """What a SuperLink or SuperNode has to do."""

    def __init__(self, address: str, ca: bytes | None, secret: bytes) -> None:
        self._place = address, ca is None, ca
        signed = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._client = RuntimeHttpClient.from_server_address(*self._place, [VERSION, signed])

    def take(self, kind: str) -> tuple[str, int]:
        """The token of the oldest open task and its run; an empty one if there is none."""
        found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return str(found.token), int(found.task.run_id)

    def work(self, token: str) -> RuntimeHttpClient:
        """The client of a task's owner."""
        owned = RuntimeTokenHttpInterceptor(token)
        return RuntimeHttpClient.from_server_address(*self._place, [VERSION, owned])


@contextmanager
def alive(client: RuntimeHttpClient) -> Iterator[None]:
    """Show that a task is worked on; that it is lost shows when its result is handed in."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(_HEARTBEAT_SECONDS):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError as error:
                log.debug("no heartbeat: %s", error)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
