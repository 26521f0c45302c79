"""The run folder: configuration, rows, messages, checkpoints, client states, result, model.

    config.toml  rounds.jsonl  messages.jsonl  result.json  model.safetensors
    checkpoints/0000010/{server.safetensors,position.json}  clients/<client>-<round>.safetensors

Everything in it is there whole or not at all: a run that is killed goes on from its last
checkpoint, and rows written after it are cut off and written again.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fedsieve.core.errors import ResumeError
from fedsieve.engines import blob
from fedsieve.engines.post import Link, Links
from fedsieve.engines.rounds import Position
from fedsieve.engines.store import ClientStore
from fedsieve.ledger.bytes import Sent
from fedsieve.ledger.rows import Row, Summary

KEPT_CHECKPOINTS = 2


class Saved(msgspec.Struct, frozen=True):
    """What stands beside the server's tensors in a checkpoint."""

    done: int
    links: dict[str, tuple[list[int], list[int]]]  # client -> schema hashes down and up
    schemas: tuple[bytes, ...]
    versions: dict[str, int]  # client -> round of its accepted state


class RunFolder:
    """Files of one run below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clients = path / "clients"
        self._checkpoints = path / "checkpoints"

    @property
    def is_begun(self) -> bool:
        return (self.path / "config.toml").exists()

    def begin(self, config_text: str) -> None:
        """Start afresh: a folder in use is refused, so that no result is written over."""
        if self.path.exists() and any(self.path.iterdir()):
            raise ResumeError(
                f"{self.path} is not empty. Continue it with --resume, or choose another --out."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        blob.write(self.path / "config.toml", config_text.encode())

    def append(self, row: Row, messages: Iterable[Sent]) -> None:
        """Add a round."""
        with (self.path / "messages.jsonl").open("ab") as file:
            file.writelines(msgspec.json.encode(message) + b"\n" for message in messages)
        with (self.path / "rounds.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")

    def save(self, position: Position, store: ClientStore) -> None:
        """Write a checkpoint, then drop what no checkpoint needs any more."""
        versions = store.flush()
        target = self._checkpoints / f"{position.done:07d}"
        if target.exists():
            return
        fresh = self._checkpoints / "fresh.tmp"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        saved = Saved(
            position.done,
            {str(c): (sorted(x.down), sorted(x.up)) for c, x in position.links.items()},
            position.schemas,
            {str(c): v for c, v in versions.items()},
        )
        blob.write(fresh / "server.safetensors", blob.pack(position.server))
        blob.write(fresh / "position.json", msgspec.json.encode(saved))
        fresh.rename(target)
        _sync(self._checkpoints)
        names = self._found()
        for old in names[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        kept = [_versions(self._saved(path)) for path in names[-KEPT_CHECKPOINTS:]]
        store.forget_all_but(kept)

    def load(self, server_kind: type, store: ClientStore) -> tuple[Position | None, list[Row]]:
        """The newest checkpoint and the rows up to it; (None, []) when there is none yet."""
        found = self._found()
        if not found:
            self._cut(0)
            return None, []
        saved = self._saved(found[-1])
        store.restore(_versions(saved))
        server = blob.read(server_kind, found[-1] / "server.safetensors")
        links: Links = {
            int(c): Link(frozenset(down), frozenset(up)) for c, (down, up) in saved.links.items()
        }
        rows = self._cut(saved.done)
        if len(rows) != saved.done:
            raise ResumeError(
                f"{self.path}: rounds.jsonl has {len(rows)} rows, the checkpoint {saved.done}. "
                "Start again in a new folder."
            )
        return Position(saved.done, server, links, saved.schemas), rows

    def finish(self, summary: Summary, model: dict[str, Any] | None) -> None:
        """Write the result, and the global model if there is one."""
        if model is not None:
            blob.write(self.path / "model.safetensors", blob.tensor_file(model))
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        blob.write(self.path / "result.json", text + b"\n")

    def _found(self) -> list[Path]:
        return sorted(p for p in self._checkpoints.glob("*") if p.name.isdigit())

    def _saved(self, checkpoint: Path) -> Saved:
        try:
            return msgspec.json.decode((checkpoint / "position.json").read_bytes(), type=Saved)
        except (OSError, msgspec.MsgspecError) as error:
            raise ResumeError(f"{checkpoint}: not a readable checkpoint ({error}).") from error

    def _cut(self, done: int) -> list[Row]:
        """Drop rows and messages after round `done`, and a line that was cut off by a crash."""
        rows = []
        for name in ("rounds.jsonl", "messages.jsonl"):
            path = self.path / name
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            kept = [x for x in lines if x.endswith(b"\n") and json.loads(x)["round"] <= done]
            blob.write(path, b"".join(kept))
            if name == "rounds.jsonl":
                rows = [msgspec.json.decode(line, type=Row) for line in kept]
        return rows


def _versions(saved: Saved) -> dict[int, int]:
    return {int(client): version for client, version in saved.versions.items()}


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
