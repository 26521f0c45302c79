"""Verification of a run folder, file by file, and of what a run can resume from."""

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from filelock import FileLock, Timeout

from fedsieve.core.errors import DataError, ResumeError
from fedsieve.engine import manifest
from fedsieve.engine.checkpoint import LINES, RECORDS, CheckpointFolder, checkpoints_of, is_old
from fedsieve.engine.manifest import Checksum, fault_of, has_valid_hash

State: TypeAlias = Literal["whole", "damaged", "unproved"]


class File(msgspec.Struct, kw_only=True):
    """One file of a run; `why` says what is wrong."""

    name: str
    size: int | None  # None: it is missing
    state: State = "whole"
    why: str = ""


class Check(msgspec.Struct, kw_only=True):
    """A checkpoint; `why` says what is wrong."""

    round: int
    state: State = "whole"
    why: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """The state of a run folder.

    Attributes:
        is_whole: every file that a manifest names is as it was written.
        is_finished: a result was written, and nothing after it.
        resumes_from: the round of the newest whole checkpoint; 0 where the run would start again,
            None where it cannot go on.
    """

    run: str
    is_whole: bool
    is_finished: bool
    resumes_from: int | None
    files: list[File]
    checkpoints: list[Check]


def verify(folder: Path) -> Verdict:
    """Check every file of a run against its manifests.

    Raises:
        DataError: it is not a run folder.
        ResumeError: a process is at work in it.
    """
    if not (folder / "config.toml").exists() and not (folder / "checkpoints").exists():
        raise DataError(f"{folder}: not a run folder. Give one made with fedsieve run --out DIR.")
    if (folder / "lock").exists():
        try:
            FileLock(folder / "lock").acquire(timeout=0).lock.release()
        except Timeout as error:
            raise ResumeError(
                f"{folder}: a process is at work on this run, wait for it."
            ) from error
        except OSError:
            pass  # a copy that nobody may write to
    return _Verifier(folder).verdict()


class _Verifier:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, File] = {}

    def verdict(self) -> Verdict:
        checkpoints = checkpoints_of(self._folder)
        config = self._config()
        self._result()
        checks = [self._checkpoint(checkpoint) for checkpoint in checkpoints]
        for name in ("result.json", "model.safetensors", *LINES):
            if name not in self._files and (self._folder / name).exists():
                self._add(name, "unproved", "no manifest says what it was")
        whole = [check.round for check in checks if check.state != "damaged"]
        last = max(whole, default=0 if not checks else None)
        every = [*self._files.values()]
        return Verdict(
            run=str(self._folder),
            is_whole=all(file.state == "whole" for file in every),
            is_finished=(self._folder / manifest.NAME).exists(),
            resumes_from=None if config == "damaged" else last,
            files=sorted(every, key=lambda file: file.name),
            checkpoints=checks,
        )

    def _config(self) -> State:
        try:
            is_whole = has_valid_hash((self._folder / "config.toml").read_bytes())
        except OSError:
            is_whole = False
        if is_whole:
            return self._add("config.toml", "whole")
        if is_old(self._folder):
            return self._add("config.toml", "unproved", "it does not end in its own hash")
        return self._add("config.toml", "damaged", "is damaged, missing or was changed")

    def _result(self) -> None:
        try:
            checksums = manifest.read(self._folder / manifest.NAME)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._add(manifest.NAME, "damaged", str(error))
            return
        self._add(manifest.NAME, "whole")
        for name, checksum in checksums.items():
            self._check(name, checksum, grows=False)

    def _checkpoint(self, checkpoint: CheckpointFolder) -> Check:
        name = f"{checkpoint.name}/{manifest.NAME}"
        check = Check(round=checkpoint.done)
        try:
            checksums = checkpoint.checksums()
        except ResumeError as error:
            check.state = "unproved" if is_old(self._folder) else "damaged"
            check.why = str(error)
            self._add(name, check.state, str(error).split(" ", 1)[1])
            return check
        self._add(name, "whole")
        for file, checksum in checksums.items():
            is_record = file.split("/")[0] in RECORDS
            if is_record and not (self._folder / file).exists():
                continue  # of many, some are dropped in time
            if (
                (why := self._check(file, checksum, grows=file in LINES))
                and not is_record
                and check.state == "whole"
            ):
                check.state, check.why = "damaged", f"{file} {why}"
        return check

    def _check(self, name: str, checksum: Checksum, *, grows: bool) -> str:
        fault = fault_of(self._folder, name, checksum, grows=grows)
        self._add(name, "damaged" if fault else "whole", fault.why if fault else "")
        return fault.why if fault else ""

    def _add(self, name: str, state: State, why: str = "") -> State:
        """A file that any manifest finds damaged stays so."""
        path = self._folder / name
        size = path.stat().st_size if path.is_file() else None
        if name not in self._files or state == "damaged":
            self._files[name] = File(name=name, size=size, state=state, why=why)
        return state
