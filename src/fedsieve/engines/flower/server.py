"""The server's place at a SuperLink: node keys, a run, its task, and the grid that goes with it."""

import hashlib
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedsieve.core.errors import RoundError
from fedsieve.engines.flower.task import VERSION, Tasks, alive
from fedsieve.engines.remote.signature import Public

log = logging.getLogger("fedsieve")
_START_SECONDS = 600  # a loaded machine takes its time
_TASK_SECONDS = 30
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
    """A SuperLink as its operator reaches it: on this machine, behind no gate."""

    address: str
    ca: bytes | None  # None: no TLS
    secret: bytes
    runs: list[int] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)  # of the last run

    def wait(self, seconds: float, is_hopeless: Callable[[], bool] = lambda: False) -> None:
        """Until it answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                with self._control() as control:
                    control.ListRuns(ListRunsRequest(limit=1))
            except httpx.HTTPError as error:
                if time.monotonic() > end or is_hopeless():
                    raise RoundError(
                        f"the SuperLink at {self.address} does not answer ({error}). All rounds "
                        "before are kept; see superlink.log, then deploy again with --resume."
                    ) from error
                time.sleep(0.5)
            else:
                return

    def admit(self, key: Public) -> None:
        """Let the owner of a key connect."""
        with self._control() as control:
            try:
                control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key.key)))
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.PRECONDITION_FAILED:  # known already
                    raise

    def connect(self) -> Grid:
        """Begin a run, take its task, and keep it alive; again if the SuperLink ends meanwhile."""
        for _ in range(_TRIES):
            self.wait(_START_SECONDS)
            self.close()
            try:
                return self._begun()
            except httpx.HTTPError as error:
                log.warning("the SuperLink began no run (%s); trying again", error)
        raise RoundError(f"no run can be begun at {self.address}; see superlink.log.")

    def _begun(self) -> Grid:
        with self._control() as control:
            content = build_fab_from_files({"pyproject.toml": _PYPROJECT, "empty.py": _EMPTY})[0]
            fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
            run = control.StartRun(StartRunRequest(fab=fab)).run_id
        self.runs.append(run)
        grid = HttpGrid(self.address, self.ca is None, self.ca, token=self._token(run))
        # Flower's own way with a lost task is to interrupt the process.
        grid._retry_invoker = None  # type: ignore[assignment]
        self._open.callback(grid.close)
        given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        self._open.enter_context(alive(grid._runtime_client))
        return grid

    def close(self) -> None:
        """End the last run; its messages are void."""
        self._open.close()
        if self.runs:
            try:
                with self._control() as control:
                    control.StopRun(StopRunRequest(run_id=self.runs[-1]))
            except httpx.HTTPError as error:
                log.debug("run %d could not be stopped: %s", self.runs[-1], error)

    def traffic(self) -> tuple[int, int]:
        """Bytes (up, down) that Flower counts for these runs: objects and its own messages."""
        with self._control() as control:
            runs = [control.ListRuns(ListRunsRequest(run_id=r)).run_dict[r] for r in self.runs]
        return sum(r.bytes_recv for r in runs), sum(r.bytes_sent for r in runs)

    def _token(self, run: int) -> str:
        """The right to act as the server of a run; tasks of earlier runs are left to expire."""
        tasks = Tasks(self.address, self.ca, self.secret)
        end = time.monotonic() + _TASK_SECONDS
        while time.monotonic() < end:
            token, found = tasks.take(TaskType.SERVER_APP)
            if token and found == run:
                return token
            time.sleep(0.2)
        raise RoundError(f"the SuperLink at {self.address} gives no task for run {run}.")

    def _control(self) -> ControlHttpClient:
        return ControlHttpClient.from_server_address(
            self.address, self.ca is None, self.ca, [VERSION]
        )
