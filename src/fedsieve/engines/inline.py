"""The in-line executor: one client after the other in this process."""

from collections.abc import Generator, Iterable

from fedsieve.engines.site import Request, Response, Site


class Inline:
    """Runs requests where it stands."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        yield from map(self._site.handle, requests)

    def close(self) -> None:
        """Nothing to close."""
