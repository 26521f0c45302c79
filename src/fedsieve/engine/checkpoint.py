"""A checkpoint in a run folder, and whether all that it stands on is as it was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedsieve.core.errors import ResumeError
from fedsieve.engine import manifest
from fedsieve.engine.broadcast import ClientCache
from fedsieve.engine.manifest import Checksum, Fault, fault_of, has_valid_hash
from fedsieve.engine.mask_cache import Packed
from fedsieve.engine.rounds import Checkpoint

SERVER, POSITION = "server.safetensors", "position.msgpack"
LINES = ("rounds.jsonl", "messages.jsonl", "evaluations.jsonl")  # of which it holds the beginning
RECORDS = ("supports", "messages")  # for reports and `inspect`; a run goes on without


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint without the server's tensors."""

    done: int
    caches: dict[str, tuple[list[int], list[int], list[int]]] = msgspec.field(name="links")
    schemas: tuple[bytes, ...]
    masks: tuple[tuple[int, bytes, int], ...]
    versions: dict[str, dict[str, int]]  # store -> client -> round of what it holds
    seen: tuple[int, ...]
    config: str = ""  # TOML
    examples: dict[str, int] = {}  # client -> what it said first

    def of(self, store: str) -> dict[int, int]:
        """Versions in one of the stores, by client."""
        return {int(client): version for client, version in self.versions[store].items()}

    def position(self, server: Any) -> Checkpoint:
        """The position that was saved, with the server's tensors."""
        caches = {
            int(client): ClientCache(tuple(down), tuple(up), tuple(masks))
            for client, (down, up, masks) in self.caches.items()
        }
        table = {digest: Packed(bits, size) for digest, bits, size in self.masks}
        examples = {int(client): count for client, count in self.examples.items()}
        seen = frozenset(self.seen)
        return Checkpoint(self.done, server, caches, self.schemas, table, seen, examples)


def saved_of(position: Checkpoint, versions: dict[str, dict[int, int]], config: str) -> Saved:
    """A position as it is saved, with the versions that stores hold."""
    return Saved(
        position.done,
        {
            str(client): (list(client_cache.down), list(client_cache.up), list(client_cache.masks))
            for client, client_cache in position.caches.items()
        },
        position.schemas,
        tuple((digest, *packed) for digest, packed in position.masks.items()),
        {name: {str(c): v for c, v in held.items()} for name, held in versions.items()},
        tuple(sorted(position.seen)),
        config,
        {str(client): count for client, count in position.examples.items()},
    )


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoint after round `done` of the run in a folder."""

    folder: Path
    done: int

    @property
    def name(self) -> str:
        """Its folder's name within the run's."""
        return f"checkpoints/{self.done:07d}"

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def has_manifest(self) -> bool:
        """Whether it has a manifest; those of older versions have none."""
        return (self.path / manifest.NAME).exists()

    def checksums(self) -> dict[str, Checksum]:
        """Checksums of all files that it needs, by name.

        Raises:
            ResumeError: its manifest is missing or not whole.
        """
        try:
            return manifest.read(self.path / manifest.NAME)
        except FileNotFoundError as error:
            raise ResumeError(f"{self.name}/{manifest.NAME} is missing") from error
        except (OSError, ValueError) as error:
            raise ResumeError(f"{self.name}/{manifest.NAME} {error}") from error

    def faults(self) -> Iterator[Fault]:
        """Files without which it is no use, and which are not as they were written."""
        try:
            checksums = self.checksums()
        except ResumeError as error:
            yield Fault(*str(error).split(" ", 1))
            return
        for name, checksum in checksums.items():
            is_record = name.startswith(tuple(f"{r}/" for r in RECORDS))
            if not is_record and (fault := self.fault(name, checksum)):
                yield fault

    def fault(self, name: str, checksum: Checksum) -> Fault | None:
        """What is wrong with one of its files, if anything."""
        return fault_of(self.folder, name, checksum, grows=name in LINES)

    def check(self, *names: str) -> None:
        """Raise ResumeError if one of these files is not as it was written; unproved ones pass."""
        checksums = self.checksums() if self.has_manifest else {}
        for name in names:
            if name in checksums and (fault := self.fault(name, checksums[name])):
                raise ResumeError(f"{self.folder}: {fault}. {manifest.ADVICE}")

    def saved(self) -> Saved:
        path = self.path / POSITION
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=Saved)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ResumeError(f"{path}: not a readable checkpoint ({error}).") from error


def is_old(folder: Path) -> bool:
    """Whether a run was begun by a version that proved nothing."""
    try:
        if has_valid_hash((folder / "config.toml").read_bytes()) is not None:
            return False
    except FileNotFoundError:
        return False
    checkpoints = checkpoints_of(folder)
    if checkpoints:
        return not any(checkpoint.has_manifest for checkpoint in checkpoints)
    return not (folder / "checkpoints").exists()  # the first thing that is made


def checkpoints_of(folder: Path) -> list[CheckpointFolder]:
    """The checkpoints in a run folder, oldest first."""
    names = [path.name for path in (folder / "checkpoints").glob("*")]
    return [CheckpointFolder(folder, n) for n in sorted(int(x) for x in names if x.isdigit())]
