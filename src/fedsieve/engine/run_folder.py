"""The run folder: configuration, rows, messages, checkpoints, client states, result, model.

    config.toml  rounds.jsonl  evaluations.jsonl  messages.jsonl  result.json  model.safetensors
    manifest
    checkpoints/0000010/{server.safetensors,position.msgpack,manifest}
    clients/{states,residuals}/<client>-<round>.safetensors
    messages/<round>-<client>-{up,down}.frame  supports/<round>.{bits,gates}

Everything in it is there whole or not at all: a run that is killed goes on from its last
checkpoint, and rows written after it are cut off and written again. A checkpoint's manifest proves
all that it stands on; one that is damaged is left out for the one before. One process writes at a
time.
"""

import errno
import logging
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout

from fedsieve.core.errors import ResumeError, StorageError
from fedsieve.engine import blob, disk, manifest
from fedsieve.engine.checkpoint import (
    LINES,
    POSITION,
    RECORDS,
    SERVER,
    CheckpointFolder,
    checkpoints_of,
    is_old,
    saved_of,
)
from fedsieve.engine.manifest import checksum_of, has_valid_hash, with_hash
from fedsieve.engine.old_checkpoints import adopt
from fedsieve.engine.records import Records
from fedsieve.engine.rounds import Checkpoint
from fedsieve.engine.store import Stores, state_path
from fedsieve.metrics.rows import Row, Summary

T = TypeVar("T")
log = logging.getLogger("fedsieve")
KEPT_CHECKPOINTS = 2
RESULT = ("config.toml", *LINES, "result.json", *RECORDS)  # what reports are made of
_UNUSED = {"lock", "checkpoints", "config.toml.tmp"}  # left by a process that ended at once
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


class RunFolder:
    """Files of one run below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clients = path / "clients"
        self._checkpoints = path / "checkpoints"
        self._config = ""
        self.records = Records(path)
        self._is_rooted = False

    @property
    def is_begun(self) -> bool:
        return (self.path / "config.toml").exists()

    @contextmanager
    def opened(self, config_text: str, *, resume: bool) -> Iterator[None]:
        """Lock the folder for this process, and write the configuration of a new run.

        Raises:
            ResumeError: a run is to start afresh in a folder in use, and no result is written over;
                or another process is at work in it.
            StorageError: there can be no such folder, or nothing can be written there.
        """
        self._config = config_text
        try:
            is_used = self.path.exists() and any(
                entry.name not in _UNUSED or (entry.is_dir() and any(entry.iterdir()))
                for entry in self.path.iterdir()
            )
        except OSError as error:
            raise self._unusable(error) from error
        if is_used and not (resume and self.is_begun):
            if resume:
                raise ResumeError(
                    f"{self.path}: config.toml is missing, nothing says which run it is. Put the "
                    "file back, or choose another --out."
                )
            raise ResumeError(
                f"{self.path} is not empty. Continue it with --resume, or choose another --out."
            )
        self._make()
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
            if not self.is_begun:
                disk.make_folder(self._checkpoints)  # says that this run can prove itself
                self._write_config()
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

    def check_config(self) -> None:
        """Raise ResumeError unless the configuration is as it was written; warn if none can say."""
        is_whole = has_valid_hash((self.path / "config.toml").read_bytes())
        if is_whole is None and is_old(self.path):
            log.warning(
                "%s was begun by an older version: nothing proves that its files are whole.",
                self.path,
            )
        elif not is_whole:
            raise ResumeError(
                f"{self.path}: config.toml is damaged or was changed, and might give another run. "
                "Put the file back as it was, or start again in a new folder."
            )

    def _make(self) -> None:
        try:
            disk.make_folder(self.path)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno not in _NO_ROOM:
                raise self._unusable(cause) from cause
            raise

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.path}: cannot be a run folder ({error.strerror}). Choose another --out."
        )

    def save(self, position: Checkpoint, stores: Stores) -> None:
        """Write a checkpoint, then drop what no checkpoint needs any more.

        A round that was cut off between accepting states and its end leaves states newer than the
        position; then the checkpoint before stays the last one.
        """
        if any(store.newest > position.done for store in stores):
            return
        versions = {name: store.flush() for name, store in stores._asdict().items()}
        target = CheckpointFolder(self.path, position.done)
        if target.path.exists():
            return
        self.records.sync()
        fresh = self._checkpoints / "fresh.tmp"
        disk.remove(fresh)
        disk.make_folder(fresh)
        saved = saved_of(position, versions, self._config)
        files = {SERVER: blob.pack(position.server), POSITION: msgspec.msgpack.encode(saved)}
        checksums = {f"{target.name}/{name}": checksum_of(data) for name, data in files.items()}
        for name, store in stores._asdict().items():
            checksums |= {
                f"clients/{name}/{file}": checksum for file, checksum in store.files().items()
            }
        files[manifest.NAME] = manifest.pack(checksums | self.records.lines | self.records.files)
        for name, data in files.items():
            disk.write(fresh / name, data)
        disk.sync(fresh)
        if not self._is_rooted:
            disk.sync(self.path)  # the names of files that were made since
            self._is_rooted = True
        disk.rename(fresh, target.path)
        disk.sync(self._checkpoints)
        checkpoints = checkpoints_of(self.path)
        for old in checkpoints[:-KEPT_CHECKPOINTS]:
            disk.remove(old.path)
        kept = [checkpoint.saved() for checkpoint in checkpoints[-KEPT_CHECKPOINTS:]]
        for name, store in stores._asdict().items():
            store.forget_all_but([saved.of(name) for saved in kept])

    def load(
        self, server_kind: type, stores: Stores, free: Collection[str] = ()
    ) -> tuple[Checkpoint | None, list[Row]]:
        """The newest whole checkpoint, and the rows up to it; (None, []) if there never was one.

        What was written after it is cut off; settings but those that are `free` must be the same.

        Raises:
            ResumeError: no checkpoint is whole, or the run is another one.
        """
        checkpoints, faults = checkpoints_of(self.path), list[str]()
        if checkpoints and is_old(self.path):
            adopt(self.path, checkpoints, len(self.records.rows()))
        newer = list[CheckpointFolder]()
        while checkpoints and (fault := next(checkpoints[-1].faults(), None)):
            newer.append(checkpoints.pop())
            faults.append(f"{newer[-1].name} is left out: {fault}")
        if newer and not checkpoints:
            raise ResumeError(
                f"{self.path}: no checkpoint is whole. {'; '.join(faults)}. "
                "Put back a copy of the files, or start again in a new folder."
            )
        for text in faults:
            log.warning("%s: %s. Its rounds are run again.", self.path, text)
        disk.remove(self.path / manifest.NAME)  # of a result that will be another one
        if not checkpoints:
            self.records.go_back({}, 0)
            self._write_config()
            return None, []
        checkpoint = checkpoints[-1]
        saved, checksums = checkpoint.saved(), checkpoint.checksums()
        self._check_same(saved.config, free)
        server = blob.read(server_kind, checkpoint.path / SERVER)
        for name, store in stores._asdict().items():
            place = f"clients/{name}/"
            files = {n.removeprefix(place): m for n, m in checksums.items() if n.startswith(place)}
            store.restore(saved.of(name), files)
        for damaged in newer:
            disk.remove(damaged.path)
        self.records.go_back(checksums, saved.done)
        rows = self.records.rows()
        if len(rows) != saved.done:
            raise ResumeError(
                f"{self.path}: rounds.jsonl has {len(rows)} rows up to round {saved.done}. "
                "Start again in a new folder."
            )
        self._write_config()
        return saved.position(server), rows

    def server(self, kind: type[T]) -> T | None:
        """The server of the newest checkpoint, if there is one.

        Raises:
            ResumeError: it is damaged.
        """
        if not (checkpoints := checkpoints_of(self.path)):
            return None
        newest = checkpoints[-1]
        newest.check(f"{newest.name}/{SERVER}")
        server: T = blob.read(kind, newest.path / SERVER)
        return server

    def state(self, kind: type[T], client: int) -> T | None:
        """A client's state in the newest checkpoint, if it has one.

        Raises:
            ResumeError: it is damaged.
        """
        if not (checkpoints := checkpoints_of(self.path)):
            return None
        newest = checkpoints[-1]
        newest.check(f"{newest.name}/{POSITION}")
        version = newest.saved().of("states").get(client)
        if version is None:
            return None
        path = state_path(self.clients / "states", client, version)
        newest.check(f"clients/states/{path.name}")
        state: T = blob.read(kind, path)
        return state

    def finish(self, summary: Summary, model: dict[str, Any] | None) -> None:
        """Write the result, and the global model if there is one; then what proves them."""
        disk.remove(self.path / manifest.NAME)
        self.records.cut()
        files = {} if model is None else {"model.safetensors": blob.tensor_file(model)}
        files["result.json"] = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
        for name, data in files.items():
            disk.write(self.path / name, data)
        checksums = {"config.toml": checksum_of(with_hash(self._config)), **self.records.lines}
        checksums |= {name: checksum_of(data) for name, data in files.items()} | self.records.files
        disk.write(self.path / manifest.NAME, manifest.pack(checksums))

    def _write_config(self) -> None:
        disk.write(self.path / "config.toml", with_hash(self._config))

    def _check_same(self, config: str, free: Collection[str]) -> None:
        """Raise ResumeError if a checkpoint was made with another configuration."""
        given, saved = tomllib.loads(self._config), tomllib.loads(config or self._config)
        for before, now in ((saved, given), (saved.get("options", {}), given.get("options", {}))):
            for name in before.keys() & now.keys() - set(free) - {"options"}:
                if before[name] != now[name]:
                    raise ResumeError(
                        f"{self.path}: config.toml has {name} = {now[name]!r}, the checkpoint was "
                        f"made with {before[name]!r}: it is that of another run. Put back its own."
                    )
