"""Checkpoints of versions that wrote no manifests."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedsieve.core.errors import ResumeError
from fedsieve.engine import disk, manifest
from fedsieve.engine.checkpoint import LINES, POSITION, SERVER, CheckpointFolder
from fedsieve.engine.manifest import Checksum, checksum_of, hashed
from fedsieve.engine.records import complete_lines
from fedsieve.engine.store import state_path


def adopt(run: Path, checkpoints: Sequence[CheckpointFolder], rounds: int) -> None:
    """Give the newest checkpoint within the `rounds` that have rows a manifest, as it is now."""
    for checkpoint in reversed(checkpoints):
        if checkpoint.done > rounds:
            disk.remove(checkpoint.path)  # its rows were lost, as in a power cut
            continue
        saved, checksums = checkpoint.saved(), dict[str, Checksum]()
        for name in LINES:
            kept = [x for x in complete_lines(run / name) if _round(x) <= saved.done]
            checksums[name] = checksum_of(b"".join(kept))
        files = [f"{checkpoint.name}/{SERVER}", f"{checkpoint.name}/{POSITION}"]
        for store in saved.versions:
            place = Path("clients") / store
            files += [str(state_path(place, c, v)) for c, v in saved.of(store).items()]
        try:
            checksums |= {name: hashed(run / name).checksum for name in files}
        except OSError as error:
            raise ResumeError(f"{error.filename}: {error.strerror}. Start again.") from error
        disk.write(checkpoint.path / manifest.NAME, manifest.pack(checksums))
        return


def _round(line: bytes) -> int:
    try:
        return int(json.loads(line)["round"])
    except (ValueError, LookupError, TypeError) as error:
        raise ResumeError(
            f"a line of the folder cannot be read ({error}): {line[:60]!r}"
        ) from error
