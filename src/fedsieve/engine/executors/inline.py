"""The in-line executor: one client after the other in this process."""

from collections.abc import Generator, Iterable

from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.requests import Request, Response


class Inline:
    """Executes requests in this process."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime

    def __call__(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        yield from map(self._runtime.handle, requests)

    def close(self) -> None:
        """Nothing to close."""
