"""What a run writes round by round: rows, evaluations, messages and supports, each file hashed."""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from fedsieve.core.errors import ResumeError
from fedsieve.core.message import Mask, Params
from fedsieve.engine import disk
from fedsieve.engine.checkpoint import LINES, RECORDS
from fedsieve.engine.manifest import Checksum, Hasher, checksum_of, fault_of, hashed
from fedsieve.engine.rounds import RoundResult
from fedsieve.metrics.rows import Row, read_row

log = logging.getLogger("fedsieve")
MAX_SUPPORTS = 40


class Records:
    """The records of the run in a folder."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lines = {name: Hasher() for name in LINES}
        self.lines = self._line_checksums()  # up to the last whole round
        self.files: dict[str, Checksum] = {}  # of the others

    def append(self, played: RoundResult) -> None:
        """Add a round; its row is written last."""
        for frame in played.frames:
            disk.make_folder(self._run / "messages")
            self._write(f"messages/{frame.file_name}", msgspec.msgpack.encode(frame))
        self._add("messages.jsonl", played.messages)
        self._add("evaluations.jsonl", [played.evaluation] if played.evaluation else [])
        self._add("rounds.jsonl", [played.row])
        self.lines = self._line_checksums()

    def keep_support(self, number: int, gates: Mask | Params) -> None:
        """Keep where the global model is not 0, or its gates in steps of 1/255.

        Of many rounds about evenly spread ones, the first and the last among them.
        """
        disk.make_folder(self._run / "supports")
        flat = np.concatenate([g.numpy().reshape(-1) for g in gates.values()])
        is_mask = flat.dtype == np.bool_
        data = np.packbits(flat) if is_mask else np.rint(flat * 255).astype(np.uint8)
        name = f"{number:07d}.{'bits' if is_mask else 'gates'}"
        self._write(f"supports/{name}", data.tobytes())
        kept = kept_supports(self._run)
        if len(kept) > MAX_SUPPORTS:
            rounds = [int(path.stem) for path in kept]
            gaps = [after - before for before, after in zip(rounds, rounds[2:], strict=False)]
            self._drop(kept[1 + gaps.index(min(gaps))])  # the one between the nearest neighbours

    def rows(self) -> list[Row]:
        """The rows of all finished rounds."""
        try:
            lines = complete_lines(self._run / "rounds.jsonl")
            return [read_row(line) for line in lines]
        except (OSError, msgspec.MsgspecError) as error:
            raise ResumeError(f"{self._run}: rounds.jsonl cannot be read ({error}).") from error

    def sync(self) -> None:
        """Wait until the lines would survive a power cut."""
        for name in LINES:
            if (self._run / name).exists():
                disk.sync(self._run / name)

    def cut(self) -> None:
        """Cut off the lines of a round that could not be written whole."""
        for name, checksum in self.lines.items():
            if (self._run / name).exists():
                disk.cut(self._run / name, checksum.size)

    def go_back(self, checksums: dict[str, Checksum], done: int) -> None:
        """Cut off what was written after round `done`, and remove files that are damaged."""
        for name in LINES:
            size = checksums[name].size if checksums else 0
            disk.cut(self._run / name, size)
            self._lines[name] = hashed(self._run / name)
        self.lines = self._line_checksums()
        for path in kept_supports(self._run):
            if int(path.stem) > done:
                self._drop(path)
        for name, checksum in checksums.items():
            if name.split("/")[0] not in RECORDS or not (self._run / name).exists():
                continue
            if fault := fault_of(self._run, name, checksum):
                log.warning("%s: %s, it is removed.", self._run, fault)
                disk.remove(self._run / name)
            else:
                self.files[name] = checksum

    def _line_checksums(self) -> dict[str, Checksum]:
        return {name: lines.checksum for name, lines in self._lines.items()}

    def _add(self, name: str, lines: Iterable[msgspec.Struct]) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        disk.append(self._run / name, data)
        self._lines[name].update(data)

    def _write(self, name: str, data: bytes) -> None:
        disk.write(self._run / name, data)
        self.files[name] = checksum_of(data)

    def _drop(self, path: Path) -> None:
        disk.remove(path)
        self.files.pop(str(path.relative_to(self._run)), None)


def complete_lines(path: Path) -> list[bytes]:
    """Lines that were written whole: the last one may be being written, or cut off by a crash."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def kept_supports(run: Path) -> list[Path]:
    """The files of supports (bits) and gates in a run folder, by round."""
    paths = (run / "supports").glob("*")
    return sorted(path for path in paths if path.suffix in {".bits", ".gates"})
