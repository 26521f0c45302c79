"""All writes to files of a run: whole or not at all, and a full disk in plain words.

Every step is announced to `before`, which does nothing; tests make it fail at each one in turn.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsieve.core.errors import StorageError


def before(step: str, path: Path) -> None:
    """Called before each step that changes the disk."""


def write(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a crash."""
    temporary = path.with_name(path.name + ".tmp")
    with _told(path):
        before("write", temporary)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            before("sync", temporary)
            os.fsync(file.fileno())
        before("rename", path)
        temporary.replace(path)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file, which is made if it is not there."""
    with _told(path):
        before("append", path)
        with path.open("ab") as file:
            file.write(data)


def cut(path: Path, size: int) -> None:
    """Drop what stands behind the first `size` bytes of a file; it is made if need be."""
    with _told(path):
        before("cut", path)
        with path.open("ab") as file:
            file.truncate(size)
            os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    with _told(path):
        before("sync", path)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def rename(source: Path, target: Path) -> None:
    with _told(target):
        before("rename", target)
        source.rename(target)


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    with _told(path):
        before("remove", path)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    with _told(path):
        if not path.is_dir():
            before("make", path)
            path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}). Make room, or give the right "
            "to write there; a run then goes on from its last checkpoint with --resume."
        ) from error
