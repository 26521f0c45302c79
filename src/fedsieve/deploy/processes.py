"""Programs that belong to this process: kept running, and ended with it."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

log = logging.getLogger("fedsieve")
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_PR_SET_PDEATHSIG = 1
IN_MEMORY = ":flwr-in-memory:"


def own_superlink_command(socket_path: Path, database: str, *, is_trial: bool) -> list[str]:
    """A SuperLink on a unix socket; its folder decides who can reach it."""
    trial = ["--trial"] if is_trial else []
    return [*_module("flower.private"), str(socket_path), database, *trial]


def proxy_command(settings: Path) -> list[str]:
    """The proxy in front of a SuperLink."""
    return [*_module("proxy"), str(settings)]


class _Kept(NamedTuple):
    command: list[str]
    log: Path
    home: Path


class Children:
    """Programs that are started again when they end, until the context is left."""

    def __init__(self, again_seconds: float = 3.0) -> None:
        self._again_seconds = again_seconds
        self.restarts = 0
        self._wanted: list[_Kept] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._stop, self._ended = threading.Event(), threading.Event()
        self._changing = threading.Lock()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def keep(self, command: list[str], log_file: Path, home: Path) -> None:
        """Start a program, and again whenever it ends."""
        kept = _Kept(command, log_file, home)
        self._wanted.append(kept)
        self._running.append(_start(kept))

    def __enter__(self) -> Self:
        self._keeper.start()
        return self

    def __exit__(self, *exit_: object) -> None:
        with self._changing:
            self._stop.set()
        for process in self._running:
            process.terminate()
        end = time.monotonic() + 10
        for process in self._running:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ended.set()

    def _keep(self) -> None:
        while not self._stop.wait(self._again_seconds):
            with self._changing:
                if not self._stop.is_set():
                    self._start_again()
        self._ended.wait()  # what this thread has started must not outlive it

    def _start_again(self) -> None:
        for place, process in enumerate(self._running):
            if process.poll() is not None:
                kept = self._wanted[place]
                name = kept.log.stem
                log.warning("the %s ended, see %s; starting it again", name, kept.log)
                self._running[place] = _start(kept)
                self.restarts += 1


def off_proxy() -> dict[str, str]:
    """Variables with which programs of this machine reach each other where a proxy is set."""
    known = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    hosts = ",".join([*filter(None, [known]), "127.0.0.1", "localhost", "::1"])
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def _start(kept: _Kept) -> subprocess.Popen[bytes]:
    environment = os.environ | _QUIET | {"FLWR_HOME": str(kept.home / "flwr")}
    with kept.log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 - our own command
            kept.command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C is for this process, which ends its children in order
            preexec_fn=_leash(),  # noqa: PLW1509 - it takes no locks
        )


def _leash() -> Callable[[], None] | None:
    """On Linux a child is killed when the thread that started it is gone, even by kill -9."""
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _module(name: str) -> list[str]:
    """A program of this package; -P: whatever lies in the current folder."""
    return [sys.executable, "-P", "-m", f"fedsieve.deploy.{name}"]
