"""Waiting that can be given up."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class GivenUpError(Exception):
    """What was waited for is of no use any more."""


def wait_for(work: Callable[[], T], is_void: Callable[[], bool], every: float = 2.0) -> T:
    """What `work` returns or raises, unless `is_void` says meanwhile that nobody wants it.

    Work that is given up goes on in a thread that does not keep the process alive.
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
