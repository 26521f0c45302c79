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
_PROOF = "# fedsieve wrote this file for one run; xxh3-128 of what stands above: "
_BLOCK = 1 << 20


class Mark(NamedTuple):
    """Length and hash of a file, or of its beginning."""

    size: int
    hash: str


class Hasher:
    """The mark of a file that grows, kept up as it does."""

    def __init__(self) -> None:
        self._hash, self._size = xxhash.xxh3_128(), 0

    def update(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)

    @property
    def mark(self) -> Mark:
        return Mark(self._size, self._hash.hexdigest())


class Fault(NamedTuple):
    """A file that is not as it was written."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file} {self.why}"


def mark_of(data: bytes) -> Mark:
    return Mark(len(data), xxhash.xxh3_128_hexdigest(data))


def hashed(path: Path, size: int | None = None) -> Hasher:
    """The hasher of a file, or of its first `size` bytes."""
    hasher, left = Hasher(), size
    with path.open("rb") as file:
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            hasher.update(block)
            left = None if left is None else left - len(block)
    return hasher


def fault_of(folder: Path, name: str, mark: Mark, *, grows: bool = False) -> Fault | None:
    """What is wrong with a file, if anything; one that `grows` may be longer than its mark."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size < mark.size or (size > mark.size and not grows):
            return Fault(name, f"has {size} bytes, {mark.size} were written")
        if hashed(path, mark.size).mark != mark:
            return Fault(name, "is damaged: its bytes are not those that were written")
    except FileNotFoundError:
        return Fault(name, "is missing") if mark.size or not grows else None
    except OSError as error:
        return Fault(name, f"cannot be read ({error.strerror})")
    return None


def pack(marks: Mapping[str, Mark]) -> bytes:
    """A manifest as bytes."""
    lines = [_TITLE, *(f"{m.hash} {m.size} {name}" for name, m in marks.items()), ""]
    text = "\n".join(lines).encode()
    return text + xxhash.xxh3_128_hexdigest(text).encode() + b"\n"


def read(path: Path) -> dict[str, Mark]:
    """The marks in a manifest.

    Raises:
        ValueError: it is not whole.
        OSError: it cannot be read.
    """
    return unpack(path.read_bytes())


def unpack(data: bytes) -> dict[str, Mark]:
    """The marks in a manifest; ValueError if it is not whole."""
    text, proof = data[:-33], data[-33:]
    if proof != xxhash.xxh3_128_hexdigest(text).encode() + b"\n":
        raise ValueError("is damaged: it does not end in its own hash")
    title, *lines = text.decode().splitlines()
    if title != _TITLE:
        raise ValueError(f"begins with {title!r}, not with {_TITLE!r}")
    rows = [line.split(" ", 2) for line in lines]
    return {name: Mark(int(size), mark) for mark, size, name in rows}


def proved(text: str) -> bytes:
    """A configuration with its proof."""
    return f"{text}{_PROOF}{xxhash.xxh3_128_hexdigest(text.encode())}\n".encode()


def is_proved(data: bytes) -> bool | None:
    """Whether a configuration is as it was written; None where it has no proof at all."""
    text, separator, proof = data.rpartition(_PROOF.encode())
    if not separator:
        return None
    return proof == xxhash.xxh3_128_hexdigest(text).encode() + b"\n"


def check_finished(folder: Path, names: tuple[str, ...]) -> None:
    """Raise DataError if files of a finished run are not as its manifest says, if it has one."""
    try:
        marks = read(folder / NAME)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: {NAME} {error}. {ADVICE}") from error
    for name in names:
        for file in [n for n in marks if n == name or n.startswith(f"{name}/")]:
            if fault := fault_of(folder, file, marks[file]):
                raise DataError(f"{folder}: {fault}. {ADVICE}")


ADVICE = "See `fedsieve verify`; `fedsieve run --resume` makes again what checkpoints can."
