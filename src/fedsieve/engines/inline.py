"""The in-line executor: one client after the other in this process."""

from collections.abc import Iterable, Iterator

from fedsieve.engines.site import Request, Response, Site


class Inline:
    """Runs requests where it stands."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(self, requests: Iterable[Request]) -> Iterator[Response]:
        return map(self._site.handle, requests)

    def close(self) -> None:
        """Nothing to close."""
