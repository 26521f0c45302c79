"""Client states, bounded in memory: recent ones in RAM, the others memory-mapped from disk.

A state is versioned by the round whose reply was accepted: a reply that is lost or refused leaves
the client with the version before it. Versions a checkpoint points at are kept on disk.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ResumeError
from fedsieve.core.message import Params
from fedsieve.engine import blob, disk
from fedsieve.engine.manifest import Checksum, checksum_of, fault_of


class Receipt(NamedTuple):
    """Stands for a state that stays with its owner."""

    version: int  # the round whose reply was accepted; 0 before the first
    digest: Tensor  # 16 bytes


class _Held(NamedTuple):
    state: Any
    version: int
    size: int
    is_on_disk: bool


class ClientStore:
    """States by client index; a client that never had one gets `init(client)`."""

    def __init__(
        self, folder: Path, init: Callable[[int], Any], ram_bytes: int, kind: Any = None
    ) -> None:
        self._folder, self._init, self._ram_bytes = folder, init, ram_bytes
        self._hot: OrderedDict[int, _Held] = OrderedDict()
        self._hot_bytes = 0
        self.versions: dict[int, int] = {}
        self.checksums: dict[str, Checksum] = {}  # of the files it has written, by name
        self._is_synced = True
        sample = init(0)
        self.is_stateless = sample == ()
        self.kind = kind or type(sample)

    def get(self, client: int) -> Any:
        """The accepted state of a client."""
        if self.is_stateless:
            return ()
        if client in self._hot:
            self._hot.move_to_end(client)
            return self._hot[client].state
        if client not in self.versions:
            return self._init(client)
        path = self._path(client, self.versions[client])
        checksum = self.checksums.get(path.name)
        if checksum and (fault := fault_of(self._folder, path.name, checksum)):
            raise ResumeError(f"{self._folder}: {fault}. Go on from a checkpoint with --resume.")
        state = blob.read(self.kind, path)
        version, size = self.versions[client], tree.size_bytes(state)
        self._hold(client, _Held(state, version, size, is_on_disk=True))
        return state

    def put(self, client: int, state: Any, version: int) -> None:
        """Accept a new state."""
        if self.is_stateless:
            return
        self._drop(client)
        self.versions[client] = version
        self._hold(client, _Held(state, version, tree.size_bytes(state), is_on_disk=False))

    def flush(self) -> dict[int, int]:
        """Write what is only in RAM; returns the version of every client that has one."""
        for client, held in self._hot.items():
            if not held.is_on_disk:
                self._write(client, held)
                self._hot[client] = held._replace(is_on_disk=True)
        if not self._is_synced:
            disk.sync(self._folder)
            self._is_synced = True
        return dict(self.versions)

    def files(self) -> dict[str, Checksum]:
        """The files of the present versions, once they are flushed, by their name in the folder."""
        names = [self._path(c, v).name for c, v in self.versions.items()]
        return {name: self.checksums[name] for name in names}

    def restore(
        self, versions: dict[int, int], checksums: Mapping[str, Checksum] | None = None
    ) -> None:
        """Go back to the versions of a checkpoint, whose files have these checksums."""
        self._hot.clear()
        self._hot_bytes = 0
        missing = [c for c, v in versions.items() if not self._path(c, v).exists()]
        if missing:
            raise ResumeError(
                f"{self._folder}: the state of client {missing[0]} at round "
                f"{versions[missing[0]]} is missing. Start again in a new folder."
            )
        self.versions, self.checksums = dict(versions), dict(checksums or {})

    def forget_all_but(self, kept: Iterable[dict[int, int]]) -> None:
        """Delete files of versions that neither `kept` nor the present needs."""
        needed = {
            self._path(c, v) for versions in (*kept, self.versions) for c, v in versions.items()
        }
        for path in self._folder.glob("*.safetensors"):
            if path not in needed:
                disk.remove(path)
                self.checksums.pop(path.name, None)

    @property
    def newest(self) -> int:
        """The round of the newest accepted state; 0 when there is none."""
        return max(self.versions.values(), default=0)

    def digest(self, client: int) -> str:
        """The hash of a client's state, wherever it is kept."""
        state = self.get(client)
        return (
            state.digest.numpy().tobytes().hex()
            if isinstance(state, Receipt)
            else tree.digest(state)
        )

    def known(self) -> list[int]:
        """Clients that have a state of their own."""
        return sorted(self.versions)

    def _hold(self, client: int, held: _Held) -> None:
        self._hot[client] = held
        self._hot_bytes += held.size
        while self._hot_bytes > self._ram_bytes and len(self._hot) > 1:
            oldest = next(iter(self._hot))
            if not self._hot[oldest].is_on_disk:
                self._write(oldest, self._hot[oldest])
            self._drop(oldest)

    def _drop(self, client: int) -> None:
        if client in self._hot:
            self._hot_bytes -= self._hot.pop(client).size

    def _write(self, client: int, held: _Held) -> None:
        disk.make_folder(self._folder)
        path, data = self._path(client, held.version), blob.pack(held.state)
        disk.write(path, data)
        self.checksums[path.name] = checksum_of(data)
        self._is_synced = False

    def _path(self, client: int, version: int) -> Path:
        return state_path(self._folder, client, version)


def state_path(folder: Path, client: int, version: int) -> Path:
    """Where a store below `folder` keeps a client's state of a round."""
    return folder / f"{client:07d}-{version:07d}.safetensors"


class Stores(NamedTuple):
    """All that clients keep between rounds."""

    states: ClientStore
    residuals: ClientStore  # of error feedback


def open_stores(folder: Path, init: Callable[[int], Any], ram_bytes: int) -> Stores:
    """Stores below `folder`; `init(client)` is a client's first state."""
    residuals = ClientStore(folder / "residuals", lambda _: {}, ram_bytes, Params)
    return Stores(ClientStore(folder / "states", init, ram_bytes), residuals)
