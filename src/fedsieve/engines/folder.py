"""The run folder: configuration, rows, messages, checkpoints, client states, result, model.

    config.toml  rounds.jsonl  evaluations.jsonl  messages.jsonl  result.json  model.safetensors
    checkpoints/0000010/{server.safetensors,position.msgpack}
    clients/{states,residuals}/<client>-<round>.safetensors
    messages/<round>-<client>-{up,down}.frame  supports/<round>.{bits,gates}

Everything in it is there whole or not at all: a run that is killed goes on from its last
checkpoint, and rows written after it are cut off and written again. One process writes at a time.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from filelock import FileLock, Timeout

from fedsieve.core.errors import ResumeError, StorageError
from fedsieve.core.message import Mask, Params
from fedsieve.engines import blob
from fedsieve.engines.post import Link, Links
from fedsieve.engines.recall import Packed
from fedsieve.engines.rounds import Played, Position
from fedsieve.engines.store import Stores, state_path
from fedsieve.ledger.rows import Row, Summary

T = TypeVar("T")
KEPT_CHECKPOINTS = 2
MOST_SUPPORTS = 40
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_LINES = ("rounds.jsonl", "messages.jsonl", "evaluations.jsonl")


class Saved(msgspec.Struct, frozen=True):
    """What stands beside the server's tensors in a checkpoint."""

    done: int
    links: dict[str, tuple[list[int], list[int], list[int]]]  # client -> Link
    schemas: tuple[bytes, ...]
    masks: tuple[tuple[int, bytes, int], ...]
    versions: dict[str, dict[str, int]]  # store -> client -> round of what it holds
    seen: tuple[int, ...]


class RunFolder:
    """Files of one run below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clients = path / "clients"
        self.messages = path / "messages"
        self.supports = path / "supports"
        self._checkpoints = path / "checkpoints"

    @property
    def is_begun(self) -> bool:
        return (self.path / "config.toml").exists()

    @contextmanager
    def opened(self, config_text: str, *, resume: bool) -> Iterator[None]:
        """Write the configuration that gives the run as it will be; keep other processes out.

        Raises:
            ResumeError: a run is to start afresh in a folder in use, and no result is written over;
                or another process is at work in it.
            StorageError: there can be no such folder, or the disk is full.
        """
        try:
            is_used = self.path.exists() and any(self.path.iterdir())
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        if is_used and not (resume and self.is_begun):
            raise ResumeError(
                f"{self.path} is not empty. Continue it with --resume, or choose another --out."
            )
        lock = FileLock(self.path / "lock")  # given up even by a process that is killed
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ResumeError(
                f"{self.path}: another process is at work on this run. Wait until it has ended or "
                "stop it, or choose another --out."
            ) from error
        except OSError as error:
            raise self._unusable(error) from error
        try:
            blob.write(self.path / "config.toml", config_text.encode())
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise StorageError(
                f"{self.path}: cannot be written any more ({error.strerror}). Rounds up to the "
                "last checkpoint are kept: make room, then continue with --resume."
            ) from error
        finally:
            lock.release()

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.path}: cannot be a run folder ({error.strerror}). Choose another --out."
        )

    def append(self, played: Played) -> None:
        """Add a round; its row is written last."""
        for frame in played.frames:
            self.messages.mkdir(exist_ok=True)
            blob.write(self.messages / frame.file_name, msgspec.msgpack.encode(frame))
        self._add("messages.jsonl", played.messages)
        self._add("evaluations.jsonl", [played.evaluation] if played.evaluation else [])
        self._add("rounds.jsonl", [played.row])

    def keep_support(self, number: int, gates: Mask | Params) -> None:
        """Keep where the global model is not 0, or its gates in steps of 1/255.

        Of many rounds about evenly spread ones, the first and the last among them.
        """
        self.supports.mkdir(exist_ok=True)
        flat = np.concatenate([g.numpy().reshape(-1) for g in gates.values()])
        is_mask = flat.dtype == np.bool_
        data = np.packbits(flat) if is_mask else np.rint(flat * 255).astype(np.uint8)
        name = f"{number:07d}.{'bits' if is_mask else 'gates'}"
        blob.write(self.supports / name, data.tobytes())
        kept = kept_supports(self.path)
        if len(kept) > MOST_SUPPORTS:
            rounds = [int(path.stem) for path in kept]
            gaps = [after - before for before, after in zip(rounds, rounds[2:], strict=False)]
            kept[1 + gaps.index(min(gaps))].unlink()  # the one between the nearest neighbours

    def save(self, position: Position, stores: Stores) -> None:
        """Write a checkpoint, then drop what no checkpoint needs any more.

        A round that was cut off between accepting states and its end leaves states newer than the
        position; then the checkpoint before stays the last one.
        """
        if any(store.newest > position.done for store in stores):
            return
        versions = {name: store.flush() for name, store in stores._asdict().items()}
        target = self._checkpoints / f"{position.done:07d}"
        if target.exists():
            return
        for name in _LINES:
            if (self.path / name).exists():
                _sync(self.path / name)
        fresh = self._checkpoints / "fresh.tmp"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        saved = Saved(
            position.done,
            {
                str(client): (list(link.down), list(link.up), list(link.masks))
                for client, link in position.links.items()
            },
            position.schemas,
            tuple((mark, *packed) for mark, packed in position.masks.items()),
            {name: {str(c): v for c, v in held.items()} for name, held in versions.items()},
            tuple(sorted(position.seen)),
        )
        blob.write(fresh / "server.safetensors", blob.pack(position.server))
        blob.write(fresh / "position.msgpack", msgspec.msgpack.encode(saved))
        fresh.rename(target)
        _sync(self._checkpoints)
        names = self._found()
        for old in names[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        saved_ones = [self._saved(path) for path in names[-KEPT_CHECKPOINTS:]]
        for name, store in stores._asdict().items():
            store.forget_all_but([_versions(s, name) for s in saved_ones])

    def rows(self) -> list[Row]:
        """All rounds that were finished."""
        lines = complete_lines(self.path / "rounds.jsonl")
        return [msgspec.json.decode(line, type=Row) for line in lines]

    def load(self, server_kind: type, stores: Stores) -> tuple[Position | None, list[Row]]:
        """The newest checkpoint that rows reach, and the rows up to it; (None, []) without one."""
        every, reached = self._found(), len(self.rows())
        found = [path for path in every if int(path.name) <= reached]
        if not found:
            self._cut(0)
            return None, []
        for newer in every[len(found) :]:
            shutil.rmtree(newer)
        saved = self._saved(found[-1])
        for name, store in stores._asdict().items():
            store.restore(_versions(saved, name))
        server = blob.read(server_kind, found[-1] / "server.safetensors")
        links: Links = {
            int(client): Link(tuple(down), tuple(up), tuple(masks))
            for client, (down, up, masks) in saved.links.items()
        }
        table = {mark: Packed(bits, size) for mark, bits, size in saved.masks}
        rows = self._cut(saved.done)
        if len(rows) != saved.done:
            raise ResumeError(
                f"{self.path}: rounds.jsonl has {len(rows)} rows up to round {saved.done}. "
                "Start again in a new folder."
            )
        seen = frozenset(saved.seen)
        return Position(saved.done, server, links, saved.schemas, table, seen), rows

    def server(self, kind: type[T]) -> T | None:
        """The server of the newest checkpoint, if there is one."""
        found = self._found()
        if not found:
            return None
        server: T = blob.read(kind, found[-1] / "server.safetensors")
        return server

    def state(self, kind: type[T], client: int) -> T | None:
        """A client's state in the newest checkpoint, if it has one."""
        found = self._found()
        version = _versions(self._saved(found[-1]), "states").get(client) if found else None
        if version is None:
            return None
        state: T = blob.read(kind, state_path(self.clients / "states", client, version))
        return state

    def finish(self, summary: Summary, model: dict[str, Any] | None) -> None:
        """Write the result, and the global model if there is one."""
        if model is not None:
            blob.write(self.path / "model.safetensors", blob.tensor_file(model))
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        blob.write(self.path / "result.json", text + b"\n")

    def _add(self, name: str, lines: Iterable[msgspec.Struct]) -> None:
        with (self.path / name).open("ab") as file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)

    def _found(self) -> list[Path]:
        return sorted(p for p in self._checkpoints.glob("*") if p.name.isdigit())

    def _saved(self, checkpoint: Path) -> Saved:
        try:
            return msgspec.msgpack.decode(
                (checkpoint / "position.msgpack").read_bytes(), type=Saved
            )
        except (OSError, msgspec.MsgspecError) as error:
            raise ResumeError(f"{checkpoint}: not a readable checkpoint ({error}).") from error

    def _cut(self, done: int) -> list[Row]:
        """Drop rows and messages after round `done`, and a line that was cut off by a crash."""
        rows = []
        for path in kept_supports(self.path):
            if int(path.stem) > done:
                path.unlink()
        for name in _LINES:
            path = self.path / name
            kept = [x for x in complete_lines(path) if json.loads(x)["round"] <= done]
            blob.write(path, b"".join(kept))
            if name == "rounds.jsonl":
                rows = [msgspec.json.decode(line, type=Row) for line in kept]
        return rows


def complete_lines(path: Path) -> list[bytes]:
    """Lines that were written whole: the last one may be being written, or cut off by a crash."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def kept_supports(run: Path) -> list[Path]:
    """The files of supports (bits) and gates in a run folder, by round."""
    found = (run / "supports").glob("*")
    return sorted(path for path in found if path.suffix in {".bits", ".gates"})


def _versions(saved: Saved, store: str) -> dict[int, int]:
    return {int(client): version for client, version in saved.versions[store].items()}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
