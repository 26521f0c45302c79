"""A node's work: messages taken one by one, answered in this process, replies sent at once."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

import httpx
from flwr.app import Error, Message

from fedsieve.core.errors import WireError
from fedsieve.deploy.flower.fleet import BrokenError
from fedsieve.deploy.flower.private import ErrorCode
from fedsieve.deploy.flower.transport import pack, unpack
from fedsieve.deploy.waiting import GivenUpError, wait_for

log = logging.getLogger("fedsieve")
_TELL_SECONDS = 60.0  # a reason that stays the same is told that often
_PAUSE_SECONDS = (0.2, 3.0)
_START_SECONDS = 5.0


class Connection(Protocol):
    """A connection that messages are pulled from; `Fleet` is one."""

    def pull(self) -> Message | None:
        """The next message, if there is one."""

    def reply(self, message: Message, seconds: float) -> bool:
        """Send a reply; whether it came in time."""

    def rejoin(self) -> None:
        """Connect anew."""

    def leave(self) -> None:
        """Disconnect."""


class Troubles:
    """Why there is no connection: told when it changes, and once a minute."""

    def __init__(self, why: Callable[[httpx.HTTPError], str]) -> None:
        self._why, self._told, self._at, self._since = why, "", 0.0, 0.0
        self.pause = _PAUSE_SECONDS[0]

    def meet(self, error: httpx.HTTPError) -> None:
        """Log the reason of an error, and wait a little."""
        reason, now = self._why(error), time.monotonic()
        self._since = self._since or now
        is_short = isinstance(error, httpx.HTTPStatusError) and now - self._since < _START_SECONDS
        if is_short:  # a SuperLink that starts again refuses, until it is told who may connect
            log.debug("%s", reason)
        elif reason != self._told or now - self._at > _TELL_SECONDS:
            log.warning("%s", reason)
            self._told, self._at = reason, now
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, _PAUSE_SECONDS[1])

    def end(self) -> None:
        """The connection is there."""
        if self._told:
            log.warning("connected again")
        self._told, self._since, self.pause = "", 0.0, _PAUSE_SECONDS[0]


def serve(
    connection: Connection,
    answer: Callable[[bytes], bytes],
    is_over: Callable[[], bool],
    why: Callable[[httpx.HTTPError], str] = str,
) -> None:
    """Answer messages of a connection until `is_over`."""
    troubles = Troubles(why)
    try:
        while not is_over():
            try:
                message = wait_for(connection.pull, is_over, 0.2)
                troubles.end()
                if message is not None:
                    _handle(connection, message, answer)
            except GivenUpError:
                return
            except httpx.HTTPError as error:
                connection.rejoin()
                troubles.meet(error)
            except Exception as error:  # noqa: BLE001 - a message that is lost must not end the node
                name = "" if isinstance(error, BrokenError) else f"{type(error).__name__}: "
                log.warning("a message is lost: %s%s", name, error)
                connection.rejoin()
    finally:
        connection.leave()


def _handle(connection: Connection, message: Message, answer: Callable[[bytes], bytes]) -> None:
    start = time.monotonic()
    try:
        reply = Message(pack(answer(unpack(message.content))), reply_to=message)
    except WireError as error:  # nobody who may ask: no answer but that
        log.warning("a message was turned away: %s", error)
        fault = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="not a signed call")
        reply = Message(fault, reply_to=message)
    try:
        is_in_time = connection.reply(reply, message.metadata.ttl - (time.monotonic() - start))
    except httpx.HTTPStatusError as error:
        if error.response.is_server_error:
            raise
        is_in_time = False  # its run is over
    if not is_in_time:
        log.warning("the answer came too late: the server does not wait for it any more")
