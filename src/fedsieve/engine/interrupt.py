"""Stopping politely: the first Ctrl-C ends the run after the round, a second one at once."""

import logging
import signal
import threading
from types import FrameType
from typing import Any, Self

log = logging.getLogger("fedsieve")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Context in which SIGINT and SIGTERM set `is_asked`; inactive outside the main thread."""

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._asked) for s in _SIGNALS}
        return self

    def __exit__(self, *exit_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        log.warning("stopping after this round; once more to stop at once and drop it")
