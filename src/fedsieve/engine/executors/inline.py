"""The in-line executor: one client after the other in this process."""

from collections.abc import Generator, Iterable

from fedsieve.engine.client import ClientRuntime, Request, Response


class Inline:
    """Runs requests where it stands."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime

    def __call__(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        yield from map(self._runtime.handle, requests)

    def close(self) -> None:
        """Nothing to close."""
