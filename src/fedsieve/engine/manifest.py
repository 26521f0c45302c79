"""Manifests: lengths and hashes of files, in a list that ends in its own hash.

    fedsieve manifest 1
    <hash> <bytes> <file>        one line a file; of a file that grows, what it began with
    <hash of all lines above>

A configuration ends in a comment with the hash of what stands above it. The hashes (xxh3-128) find
damage, not forgery: whoever can write to a folder can write a manifest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import xxhash

from fedsieve.core.errors import DataError

NAME = "manifest"
_TITLE = "fedsieve manifest 1"
_HASH_LINE = "# fedsieve wrote this file for one run; xxh3-128 of what stands above: "
_BLOCK = 1 << 20


class Checksum(NamedTuple):
    """Length and hash of a file, or of its beginning."""

    size: int
    hash: str


class Hasher:
    """The checksum of a file that grows, kept up as it does."""

    def __init__(self) -> None:
        self._hash, self._size = xxhash.xxh3_128(), 0

    def update(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)

    @property
    def checksum(self) -> Checksum:
        return Checksum(self._size, self._hash.hexdigest())


class Fault(NamedTuple):
    """A file that is not as it was written."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file} {self.why}"


def checksum_of(data: bytes) -> Checksum:
    return Checksum(len(data), xxhash.xxh3_128_hexdigest(data))


def hashed(path: Path, size: int | None = None) -> Hasher:
    """The hasher of a file, or of its first `size` bytes."""
    hasher, left = Hasher(), size
    with path.open("rb") as file:
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            hasher.update(block)
            left = None if left is None else left - len(block)
    return hasher


def fault_of(folder: Path, name: str, checksum: Checksum, *, grows: bool = False) -> Fault | None:
    """What is wrong with a file, if anything; one that `grows` may be longer than its checksum."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size < checksum.size or (size > checksum.size and not grows):
            return Fault(name, f"has {size} bytes, {checksum.size} were written")
        if hashed(path, checksum.size).checksum != checksum:
            return Fault(name, "is damaged: its bytes are not those that were written")
    except FileNotFoundError:
        return Fault(name, "is missing") if checksum.size or not grows else None
    except OSError as error:
        return Fault(name, f"cannot be read ({error.strerror})")
    return None


def pack(checksums: Mapping[str, Checksum]) -> bytes:
    """A manifest as bytes."""
    lines = [_TITLE, *(f"{m.hash} {m.size} {name}" for name, m in checksums.items()), ""]
    text = "\n".join(lines).encode()
    return text + xxhash.xxh3_128_hexdigest(text).encode() + b"\n"


def read(path: Path) -> dict[str, Checksum]:
    """The checksums in a manifest.

    Raises:
        ValueError: it is not whole.
        OSError: it cannot be read.
    """
    return unpack(path.read_bytes())


def unpack(data: bytes) -> dict[str, Checksum]:
    """The checksums in a manifest; ValueError if it is not whole."""
    text, digest = data[:-33], data[-33:]
    if digest != xxhash.xxh3_128_hexdigest(text).encode() + b"\n":
        raise ValueError("is damaged: it does not end in its own hash")
    title, *lines = text.decode().splitlines()
    if title != _TITLE:
        raise ValueError(f"begins with {title!r}, not with {_TITLE!r}")
    rows = [line.split(" ", 2) for line in lines]
    return {name: Checksum(int(size), checksum) for checksum, size, name in rows}


def with_hash(text: str) -> bytes:
    """A configuration with the hash of what stands above."""
    return f"{text}{_HASH_LINE}{xxhash.xxh3_128_hexdigest(text.encode())}\n".encode()


def has_valid_hash(data: bytes) -> bool | None:
    """Whether a configuration is as it was written; None where it has no hash."""
    text, separator, digest = data.rpartition(_HASH_LINE.encode())
    if not separator:
        return None
    return digest == xxhash.xxh3_128_hexdigest(text).encode() + b"\n"


def check_finished(folder: Path, names: tuple[str, ...]) -> None:
    """Raise DataError if files of a finished run are not as its manifest says, if it has one."""
    try:
        checksums = read(folder / NAME)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: {NAME} {error}. {ADVICE}") from error
    for name in names:
        for file in [n for n in checksums if n == name or n.startswith(f"{name}/")]:
            if fault := fault_of(folder, file, checksums[file]):
                raise DataError(f"{folder}: {fault}. {ADVICE}")


ADVICE = "See `fedsieve verify`; `fedsieve run --resume` makes again what checkpoints can."
