"""Real deployments on this machine: processes of `fedsieve deploy` and `fedsieve node`."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fedsieve
from fedsieve.deploy.certificates import make_all
from fedsieve.jobs.config import make, to_toml
from small import SETTINGS

JOB = SETTINGS | {"clients": 3, "cohort": 3, "rounds": 3}
FAULTY = Path(__file__).parent / "e2e" / "faulty_node.py"
SLOW = float(os.environ.get("FEDSIEVE_SLOW", "1"))  # stretches time limits on a loaded machine
PATIENCE = 600 * SLOW  # seconds
LISTENS = "0A"  # a state in /proc/net/tcp


def free_port():
    """A port that nobody uses now, below those from which systems take outgoing connections."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def superlink_command(port, folder, certs):
    """A SuperLink that stands alone, on loopback, with its state below `folder`."""
    tls = ["--insecure"]
    if certs is not None:
        tls = ["--ssl-ca-certfile", str(certs / "ca.crt"), "--ssl-certfile"]
        tls += [str(certs / "server.crt"), "--ssl-keyfile", str(certs / "server.key")]
        tls += ["--enable-supernode-auth"]
    return [
        *(sys.executable, str(Path(sys.executable).parent / "flower-superlink")),
        *tls,
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--disable-runtime-dependency-installation"),
        *("--database", str(folder / "superlink.db")),
        *("--superexec-auth-secret-file", str(folder / "secret")),
    ]


class Deployment:
    """A server and its nodes below one folder; all are ended when the context is left."""

    def __init__(self, folder, **settings):
        self.folder, self.port, self.processes = folder, free_port(), []
        self.settings = JOB | settings
        make_all(folder / "keys", ["localhost"], self.settings["clients"], days=1)
        self.give("run")

    def give(self, name, **settings):
        """The job of the next server, with its run folder."""
        self.run = self.folder / name
        (self.folder / "job.toml").write_text(to_toml(make(self.settings | settings)))

    def __enter__(self):
        return self

    def __exit__(self, *exit_):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, *command, name):
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *map(str, command)], stdout=log, stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def server(self, *more, config=True):
        job = [self.folder / "job.toml"] if config else []
        return self.start(
            "-m", "fedsieve", "deploy", *job, "--out", self.run, "--port", self.port,
            "--certs", self.folder / "keys" / "server", "--quiet", *more, name="server",
        )  # fmt: skip

    def node(self, client, faults=None):
        """A node; `faults` by name, each with the round (and seconds) it happens in."""
        program = [FAULTY, json.dumps(faults)] if faults else ["-m", "fedsieve", "node"]
        return self.start(
            *program, "--server", f"localhost:{self.port}", "--client-id", client,
            "--certs", self.folder / "keys" / f"node-{client}", "--data", "job",
            "--store", self.folder / f"store-{client}", name=f"node-{client}",
        )  # fmt: skip

    def nodes(self):
        return [self.node(client) for client in range(self.settings["clients"])]

    def rows(self):
        path = self.run / "rounds.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def wait_until(self, is_so, what):
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end, f"{what} did not come:\n{self.logs()}"
            time.sleep(0.1)

    def finish(self, server):
        """The result of a run that must end well."""
        self.wait_until(lambda: server.poll() is not None, "the end")
        assert server.returncode == 0, self.logs()
        return json.loads((self.run / "result.json").read_text())

    def here(self):
        """The same job in this process, with the same clients lost and late."""
        return fedsieve.run(replay=self.run)

    def log_of(self, name):
        return (self.folder / f"{name}.log").read_text()

    def logs(self):
        files = [
            *self.folder.glob("*.log"),
            *self.folder.glob("*/*.log"),
            *self.run.glob("*/*.log"),
        ]
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in files)


def child_of(process, name):
    """The process number of a program that `process` has started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == process.pid and name in command:
            return int(path.name)
    return None


def listening_ports(process):
    """TCP ports on which a process listens."""
    inodes = set()
    for path in Path(f"/proc/{process}/fd").iterdir():
        target = str(path.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
    ]
    return [int(f[1].split(":")[1], 16) for f in lines if f[3] == LISTENS and f[9] in inodes]
