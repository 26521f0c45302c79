"""Channel spaces while a model is being walked."""

from typing import NamedTuple

from fedsieve.core.graph import Space


class Place(NamedTuple):
    """Where a tensor keeps its channels: `repeat` consecutive entries of `axis` for each one."""

    space: int
    axis: int
    repeat: int = 1


class Spaces:
    """Spaces by number; numbers may be joined to one space, or frozen so that it is never cut."""

    def __init__(self) -> None:
        self._named: list[tuple[str, int]] = []
        self._parents: list[int] = []
        self._frozen: set[int] = set()

    def new(self, name: str, size: int) -> int:
        self._named.append((name, size))
        self._parents.append(len(self._parents))
        return self._parents[-1]

    def new_frozen(self, name: str, size: int) -> int:
        number = self.new(name, size)
        self.freeze(number)
        return number

    def freeze(self, number: int) -> None:
        self._frozen.add(number)

    def join(self, a: int, b: int) -> None:
        low, high = sorted((self._root(a), self._root(b)))
        self._parents[high] = low

    def finish(self) -> list[Space]:
        """The space of every number; joined ones bear the name of the first."""
        roots = [self._root(n) for n in range(len(self._parents))]
        frozen = {roots[n] for n in self._frozen}
        return [Space(*self._named[r], is_cuttable=r not in frozen) for r in roots]

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            number = self._parents[number]
        return number
