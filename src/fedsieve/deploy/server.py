"""`fedsieve deploy`: a job whose clients are nodes on other machines.

    RUN/deploy/  job  session  superlink.db  superlink.log  proxy.json  proxy.log  tcp.json
    RUN/deploy/sockets/  superlink  news
    RUN/traffic.json

The SuperLink and the proxy are children of this process and are started again if they end.
"""

import hashlib
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.options import in_range
from fedsieve.deploy import MAX_MESSAGE_MB, proxy, traffic
from fedsieve.deploy.dispatch import Remote, RemoteJob
from fedsieve.deploy.envelope import Hello
from fedsieve.deploy.flower.server import SuperLink
from fedsieve.deploy.flower.transport import GridTransport
from fedsieve.deploy.processes import (
    IN_MEMORY,
    Children,
    off_proxy,
    own_superlink_command,
    proxy_command,
)
from fedsieve.deploy.signature import Public, read_private, read_public
from fedsieve.engine import disk
from fedsieve.engine.run_folder import RunFolder
from fedsieve.engine.store import Receipt, Stores, open_stores
from fedsieve.jobs import api
from fedsieve.jobs.api import one_thread, settings_of
from fedsieve.jobs.config import make, to_toml
from fedsieve.jobs.execution import Engine
from fedsieve.jobs.job import Job, build
from fedsieve.jobs.progress import Watcher
from fedsieve.jobs.result import Result

log = logging.getLogger("fedsieve")
_RAM_BYTES = 10**9
_LONGEST_SOCKET = 90  # characters: unix allows a little more than 100
_SHARE_OF_MEMORY = 0.25  # for a round's messages
_MOST_RESTARTS = 3  # before a SuperLink that will not start is given up
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Server:
    """The settings of a server.

    Attributes:
        certs: the server's folder of `fedsieve cert`; None is a trial without TLS on loopback.
        superlink: host:port of a SuperLink that runs already; its operator keeps the proxy.
        over_select: nodes invited beyond the cohort; the first to answer count.
        min_nodes: nodes to wait for before the first round; None means all.
    """

    host: str = "127.0.0.1"
    port: int = 8443
    certs: Path | None = None
    superlink: str | None = None
    secret: Path | None = None
    round_timeout: float = 600.0
    over_select: int = 0
    min_nodes: int | None = None
    max_message_mb: int = MAX_MESSAGE_MB

    def __post_init__(self) -> None:
        in_range("--port", self.port, 1, 65535)
        in_range("--round-timeout", self.round_timeout, 0, above=True)
        in_range("--over-select", self.over_select, 0)
        in_range("--max-message-mb", self.max_message_mb, 1)
        if self.min_nodes is not None:
            in_range("--min-nodes", self.min_nodes, 1)
        superlink, _, port = (self.superlink or "127.0.0.1:1").rpartition(":")
        if not superlink or not port.isdigit():
            raise ConfigError(f"--superlink {self.superlink!r}: write it as HOST:PORT.")
        for option, host in (("--host", self.host), ("--superlink", superlink.strip("[]"))):
            if self.certs is None and host not in LOOPBACK:
                raise ConfigError(
                    f"--insecure with {option} {host}: without TLS and keys all must be on this "
                    "machine (127.0.0.1). `fedsieve cert` makes certificates for --certs."
                )
        if self.superlink is not None and (self.secret is None or not self.secret.is_file()):
            raise ConfigError(
                f"--superlink needs --superlink-secret, the file it was started with; "
                f"found {self.secret or 'none'}."
            )


def deploy(
    server: Server,
    *,
    out: Path,
    resume: bool = False,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Result:
    """Run a job on nodes; its folder is like that of `fedsieve.run`.

    Raises:
        FedsieveError: bad settings, missing keys, a folder that cannot be continued, too few
            usable replies.
    """
    folder = RunFolder(out)
    named = settings_of(folder, settings) if resume else settings
    config = replace(make(named), checkpoint_every=1)  # nodes keep what a checkpoint may need
    if config.init_from is not None:
        raise ConfigError(
            f"init_from={config.init_from!r}: nodes do not have that file, and start models of "
            "their own from the job's seed. Leave it out of a deployment."
        )
    if config.attack is not None:
        raise ConfigError("attack: lies are for simulations. Leave it out of a deployment.")
    os.environ.update(off_proxy())
    with one_thread():
        job = build(config)
        keys = _node_keys(server, job.federation.num_clients)
        if server.superlink is None:
            _check_free(server.host, server.port)

        @contextmanager
        def nodes(job: Job, states: Path) -> Iterator[Engine]:
            with _connected(server, job, keys, out / "deploy") as (remote, superlink):
                yield Engine(receipts(states), remote)
                traffic.report(out, remote, superlink)

        return api.play(
            job,
            folder,
            resume=resume,
            watcher=watcher or Watcher(),
            open_engine=nodes,
            spare=server.over_select,
        )


def receipts(folder: Path) -> Stores:
    """Stores of receipts, for client states that stay with the nodes."""
    none_yet = Receipt(0, torch.zeros(16, dtype=torch.uint8))
    return open_stores(folder, lambda _: none_yet, _RAM_BYTES)


def hello_of(job: Job) -> Hello:
    """The description of a job that nodes get."""
    data = job.dataset
    form = (data.kind, data.layout, data.input_shape, data.num_outputs)
    return Hello(to_toml(job.config), form)


@contextmanager
def _connected(
    server: Server, job: Job, keys: dict[int, Public] | None, folder: Path
) -> Iterator[tuple[Remote, SuperLink]]:
    """The executor on nodes, and the SuperLink that it goes through."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tcp.json").unlink(missing_ok=True)  # of the server before
    with Children() as children:
        superlink = _superlink(server, _storage(job, folder), folder, children)
        superlink.keys = list((keys or {}).values())
        remote_job = RemoteJob(
            job=_once(folder / "job", lambda: secrets.token_hex(16)),
            session=_next_session(folder / "session"),
            hello=hello_of(job),
            num_clients=job.federation.num_clients,
            seconds=server.round_timeout,
            max_bytes=server.max_message_mb * 10**6,
            key=None if server.certs is None else read_private(server.certs / "sign"),
            nodes=keys,
        )
        remote = Remote(GridTransport(superlink.connect, _wake(folder)), remote_job)
        _wait_for_nodes(remote, server, job.federation.num_clients)
        try:
            yield remote, superlink
        finally:
            superlink.close()


def _storage(job: Job, folder: Path) -> str:
    """Where the SuperLink keeps messages: in memory, which is twice as fast, if there is room."""
    model = tree.size_bytes(job.method.task.init_params(fold(0, "init")))
    cohort = job.config.cohort or job.federation.num_clients
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    has_room = 2 * model * cohort < _SHARE_OF_MEMORY * there
    return IN_MEMORY if has_room else str(folder / "superlink.db")


def _superlink(server: Server, storage: str, folder: Path, children: Children) -> SuperLink:
    """Start a SuperLink behind a proxy, or connect to the one that was named."""
    certs = server.certs
    if server.superlink is not None and server.secret is not None:
        ca = None if certs is None else (certs / "ca.crt").read_bytes()
        named = SuperLink(server.superlink, ca, server.secret.read_bytes())
        named.wait(60)
        return named
    sockets = _sockets(folder)
    command = own_superlink_command(sockets / "superlink", storage, is_trial=certs is None)
    children.keep(command, folder / "superlink.log", folder)
    superlink = SuperLink(f"{proxy.UNIX}{sockets / 'superlink'}")
    superlink.wait(600, lambda: children.restarts > _MOST_RESTARTS)
    ca_file, certificate, key = (
        "" if certs is None else str(certs / name)
        for name in ("ca.crt", "server.crt", "server.key")
    )
    settings = proxy.Settings(
        host=server.host,
        port=server.port,
        superlink=superlink.address,
        ca=ca_file,
        certificate=certificate,
        key=key,
        traffic=str(folder / "tcp.json"),
        news=str(sockets / "news"),
    )
    disk.write(folder / "proxy.json", msgspec.json.encode(settings))
    children.keep(proxy_command(folder / "proxy.json"), folder / "proxy.log", folder)
    return superlink


def _sockets(folder: Path) -> Path:
    """The folder of the sockets; only this user may enter: the SuperLink trusts who connects."""
    sockets = folder.absolute() / "sockets"
    if len(str(sockets)) > _LONGEST_SOCKET:
        sockets = Path(tempfile.gettempdir()) / f"fedsieve-{os.getuid()}" / _short(sockets)
        sockets.parent.mkdir(mode=0o700, exist_ok=True)
        if sockets.parent.stat().st_uid != os.getuid():
            raise ConfigError(f"{sockets.parent} is not yours. Choose a shorter --out.")
    sockets.mkdir(mode=0o700, exist_ok=True)
    sockets.chmod(0o700)
    return sockets


def _short(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:16]


def _wake(folder: Path) -> Callable[[], None]:
    """A function that tells the proxy that there are messages; else nodes notice seconds later."""
    path = _sockets(folder) / "news"

    def wake() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news, suppress(OSError):
            news.settimeout(0)
            news.sendto(b"1", str(path))

    return wake


def _check_free(host: str, port: int) -> None:
    """Raise ConfigError if the proxy cannot listen at this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"--host {host} --port {port}: cannot listen there ({error.strerror}). Is another "
                "deployment running? Choose another --port, and tell the nodes."
            ) from error


def _node_keys(server: Server, num_clients: int) -> dict[int, Public] | None:
    """Public keys by client; the names of the files are the clients' numbers."""
    if server.certs is None:
        return None
    files = sorted((server.certs / "nodes").glob("*.pub"))
    bad = [path for path in files if not path.stem.isdigit()]
    if bad or not files:
        raise ConfigError(
            f"{server.certs / 'nodes'}: expected files 0.pub, 1.pub, ... with the nodes' public "
            f"keys, found {[path.name for path in bad] or 'none'}. `fedsieve cert` makes them."
        )
    keys = {int(path.stem): read_public(path) for path in files}
    return {client: key for client, key in keys.items() if client < num_clients}


def _wait_for_nodes(remote: Remote, server: Server, num_clients: int) -> None:
    wanted = min(server.min_nodes or num_clients, num_clients)
    before: list[int] | None = None
    while True:
        present = remote.greet(range(num_clients), seconds=10)
        if present != before:
            log.warning("%d of %d nodes are connected: %s", len(present), wanted, present)
            before = present
        if len(present) >= wanted:
            return
        time.sleep(0.5)


def _once(path: Path, make_text: Callable[[], str]) -> str:
    """The text in a file that only its owner may read; made if it is not there."""
    path.touch(mode=0o600)
    if not (text := path.read_text()):
        text = make_text()
        path.write_text(text)
    return text


def _next_session(path: Path) -> int:
    """The number of this start of the job; nodes refuse calls of an earlier one."""
    number = int(path.read_text()) + 1 if path.exists() else 1
    disk.write(path, str(number).encode())
    return number
