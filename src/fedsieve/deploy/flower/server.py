"""The server's connection to a SuperLink: node keys, a run, its task and its grid."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.serverapp import Grid

from fedsieve.core.errors import RoundError
from fedsieve.deploy.flower import private as flwr
from fedsieve.deploy.flower.grid import RuntimeGrid
from fedsieve.deploy.signature import Public

log = logging.getLogger("fedsieve")
logging.getLogger("flwr").setLevel(logging.WARNING)
_START_SECONDS = 600  # a loaded machine takes its time
_TASK_SECONDS = 30
_HEARTBEAT_SECONDS = 15
_TRIES = 5
_PYPROJECT = b"""\
[project]
name = "fedsieve-job"
version = "1.0.0"
description = "Holds no code: server and nodes run the fedsieve that is installed with them."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedsieve"
[tool.flwr.app.components]
serverapp = "empty:app"
clientapp = "empty:app"
"""
_EMPTY = b"raise SystemExit('fedsieve jobs are run by `fedsieve deploy` and `fedsieve node`')\n"


@dataclass
class SuperLink:
    """A SuperLink as its operator reaches it: on this machine, without a proxy."""

    address: str  # unix:PATH or host:port
    ca: bytes | None = None  # None: no TLS
    secret: bytes = b""  # none on a unix socket, which only this user can open
    runs: list[int] = field(default_factory=list)
    keys: Sequence[Public] = ()  # who may connect
    _open: ExitStack = field(default_factory=ExitStack)  # of the last run

    def wait(self, seconds: float, is_hopeless: Callable[[], bool] = lambda: False) -> None:
        """Until it answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                with self.control() as control:
                    control.ListRuns(flwr.ListRunsRequest(limit=1))
            except httpx.HTTPError as error:
                if time.monotonic() > end or is_hopeless():
                    raise RoundError(
                        f"the SuperLink at {self.address} does not answer ({error}). All rounds "
                        "before are kept; see superlink.log, then deploy again with --resume."
                    ) from error
                time.sleep(0.2)
            else:
                return

    def admit(self, keys: Sequence[Public]) -> None:
        """Let the owners of keys connect."""
        with self.control() as control:
            for key in keys:
                pem = key.key.public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
                try:
                    control.RegisterNode(flwr.RegisterNodeRequest(public_key=pem))
                except httpx.HTTPStatusError as error:
                    if error.response.status_code != httpx.codes.PRECONDITION_FAILED:  # known
                        raise

    def connect(self) -> Grid:
        """Begin a run, take its task, and keep it alive; again if the SuperLink ends meanwhile."""
        for _ in range(_TRIES):
            self.wait(_START_SECONDS)
            self.close()
            try:
                self.admit(self.keys)  # a SuperLink in memory forgets them when it ends
                return self._begun()
            except httpx.HTTPError as error:
                log.warning("the SuperLink began no run (%s); trying again", error)
        raise RoundError(f"no run can be begun at {self.address}; see superlink.log.")

    def _begun(self) -> Grid:
        with self.control() as control:
            files = {"pyproject.toml": _PYPROJECT, "empty.py": _EMPTY}
            content = flwr.build_fab_from_files(files)[0]
            fab = flwr.Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
            run = control.StartRun(flwr.StartRunRequest(fab=fab)).run_id
        self.runs.append(run)
        client = flwr.runtime(self.address, self.ca, token=self._token(run))
        self._open.callback(client.close)
        task = client.PullTaskInput(flwr.PullTaskInputRequest())
        flwr.identify(task.task_id, task.run.run_id, task.context.node_id)
        self._open.enter_context(_alive(client))
        return RuntimeGrid(client, run, task.context.node_id)

    def close(self) -> None:
        """End the last run; its messages are void."""
        self._open.close()
        if self.runs:
            try:
                with self.control() as control:
                    control.StopRun(flwr.StopRunRequest(run_id=self.runs[-1]))
            except httpx.HTTPError as error:
                log.debug("run %d could not be stopped: %s", self.runs[-1], error)

    def traffic(self) -> tuple[int, int]:
        """Bytes (up, down) that Flower counts for these runs: objects and its own messages."""
        up = down = 0
        with self.control() as control:
            for run in self.runs:
                try:
                    run_info = control.ListRuns(flwr.ListRunsRequest(run_id=run)).run_dict[run]
                except (httpx.HTTPStatusError, KeyError):  # of a SuperLink that was killed
                    continue
                up, down = up + run_info.bytes_recv, down + run_info.bytes_sent
        return up, down

    def control(self) -> flwr.ControlHttpClient:
        """A client of the control interface."""
        return flwr.control(self.address, self.ca)

    def _token(self, run: int) -> str:
        """The right to act as the server of a run; tasks of earlier runs are left to expire."""
        end = time.monotonic() + _TASK_SECONDS
        wanted = flwr.AcquireTaskRequest(supported_task_types=[flwr.TaskType.SERVER_APP])
        with flwr.runtime(self.address, self.ca, secret=self.secret) as client:
            while time.monotonic() < end:
                acquired = client.AcquireTask(wanted)
                if acquired.token and acquired.task.run_id == run:
                    return str(acquired.token)
                time.sleep(0.1)
        raise RoundError(f"the SuperLink at {self.address} gives no task for run {run}.")


@contextmanager
def _alive(client: flwr.RuntimeHttpClient) -> Iterator[None]:
    """Show that a task is worked on; that it is lost shows with the next call."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(_HEARTBEAT_SECONDS):
            try:
                client.SendTaskHeartbeat(flwr.SendTaskHeartbeatRequest())
            except (httpx.HTTPError, RuntimeError) as error:
                log.debug("no heartbeat: %s", error)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
