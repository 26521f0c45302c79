"""Cancellable wait."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class GivenUpError(Exception):
    """The wait was cancelled."""


def wait_for(work: Callable[[], T], is_void: Callable[[], bool], every: float = 2.0) -> T:
    """The result of `work`, run in a thread; the wait is cancelled when `is_void` says so.

    Cancelled work goes on in its thread, which does not keep the process alive.

    Raises:
        GivenUpError: it was cancelled.
    """
    done: Future[T] = Future()
    threading.Thread(target=_settle, args=(done, work), daemon=True).start()
    while True:
        try:
            return done.result(every)
        except TimeoutError:
            if done.done():
                raise
            if is_void():
                raise GivenUpError("given up for what came after it") from None


def _settle(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
        done.set_exception(error)
