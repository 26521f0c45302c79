"""`fedsieve deploy`, `fedsieve node` and `fedsieve cert`: jobs on other machines."""

import importlib.util
import logging
from pathlib import Path
from typing import Annotated

import typer

from fedsieve.cli import settings as s
from fedsieve.core.errors import ConfigError
from fedsieve.deploy import MAX_MESSAGE_MB

Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS and no keys: for a trial on this machine.")
]


@s.with_settings
def deploy(
    settings: s.Given,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("deployed"),
    certs: Annotated[
        Path | None, typer.Option(help="The server's folder made by `fedsieve cert`.")
    ] = None,
    insecure: Insecure = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that nodes connect to.")] = 8443,
    round_timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent node counts as failed.")
    ] = 600,
    over_select: Annotated[
        int, typer.Option(help="Invite that many more; the first to answer count.")
    ] = 0,
    min_nodes: Annotated[
        int | None, typer.Option(help="Nodes to wait for before the start (all).")
    ] = None,
    max_message_mb: Annotated[
        int, typer.Option(help="Largest answer that is read.")
    ] = MAX_MESSAGE_MB,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A SuperLink that runs already.")
    ] = None,
    superlink_secret: Annotated[
        Path | None, typer.Option(help="Its --superexec-auth-secret-file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Rows and result as JSON lines.")] = False,
) -> None:
    """Run a job on nodes that hold the data (server side).

    Starts a SuperLink behind a proxy, waits for the nodes, and runs the job. A run that was stopped
    or killed goes on with `--resume`.

    ```
    fedsieve cert keys --nodes 3 --host server.example.org
    fedsieve deploy job.toml --out runs/first --certs keys/server --host 0.0.0.0
    ```
    """
    _need_flower()
    from fedsieve.cli.progress import Rows, conclude
    from fedsieve.deploy.server import Server
    from fedsieve.deploy.server import deploy as run
    from fedsieve.jobs.api import Watcher
    from fedsieve.jobs.progress import shown

    server = Server(
        host=host,
        port=port,
        certs=_certs(certs, insecure=insecure),
        superlink=superlink,
        secret=superlink_secret,
        round_timeout=round_timeout,
        over_select=over_select,
        min_nodes=min_nodes,
        max_message_mb=max_message_mb,
    )
    watcher = Rows() if json else Watcher() if quiet else shown()
    with watcher:
        result = run(
            server,
            out=out,
            resume=resume,
            watcher=watcher,
            **settings,
        )
    conclude(result.summary, out, as_json=json)


def node(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server listens.")],
    client_id: Annotated[int, typer.Option(help="The number of this client, from 0.")],
    data: Annotated[
        str,
        typer.Option(
            help="`npz:FILE`, `python:module:function`, a data set by name, or `job`: this "
            "client's share of the job's data set."
        ),
    ],
    certs: Annotated[
        Path | None, typer.Option(help="The node's folder made by `fedsieve cert`.")
    ] = None,
    insecure: Insecure = False,
    store: Annotated[Path, typer.Option(help="Folder for this client's states; keep it.")] = Path(
        "fedsieve-node"
    ),
    data_root: s.DataRoot = None,
) -> None:
    """Take part in a deployment (client side); data never leaves this machine.

    ```
    fedsieve node --server server.example.org:8443 --client-id 0 --certs node-0 --data npz:mine.npz
    ```
    """
    _need_flower()
    from fedsieve.deploy.node import Node, run
    from fedsieve.engine.interrupt import Interrupt

    logging.getLogger("fedsieve").setLevel(logging.INFO)
    client_node = Node(
        server=server,
        client=client_id,
        data=data,
        store=store,
        certs=_certs(certs, insecure=insecure),
        data_root=None if data_root is None else str(data_root),
    )
    with Interrupt() as interrupt:
        run(client_node, lambda: interrupt.is_asked)


def cert(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; may be repeated.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes get keys.")] = 2,
    days: Annotated[int, typer.Option(min=1, help="How long certificates are valid.")] = 90,
    own_key: Annotated[
        bool, typer.Option("--own-key", help="Make only a node's key; send `node.pub` on.")
    ] = False,
) -> None:
    """Make certificates and keys for a deployment.

    `FOLDER/server` stays with the server, `FOLDER/node-K` goes to the owner of client K by a safe
    way, `FOLDER/ca` is put away. With `--own-key` an owner makes its key itself and hands out only
    `node.pub`, which the server keeps as `nodes/K.pub`.
    """
    _need_flower()
    from fedsieve.deploy import certificates
    from fedsieve.deploy.signature import fresh_key

    if own_key:
        certificates.write_key(folder / "node", fresh_key())
        typer.echo(
            f"Keep {folder}/node to yourself; {folder}/node.pub is for the server's operator."
        )
        return
    certificates.make_all(folder, host or ["localhost"], nodes, days)
    typer.echo(
        f"{folder}/server for `fedsieve deploy --certs`, {folder}/node-0 to node-{nodes - 1} for "
        f"`fedsieve node --certs`. Put {folder}/ca away."
    )


def _certs(certs: Path | None, *, insecure: bool) -> Path | None:
    if (certs is None) != insecure:
        raise ConfigError(
            "give --certs FOLDER (`fedsieve cert` makes one), or --insecure for a trial on this "
            "machine; not both."
        )
    if certs is not None and not (certs / "ca.crt").is_file():
        raise ConfigError(f"--certs {certs}: there is no ca.crt in it. `fedsieve cert` makes one.")
    return certs


def _need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("deployments need Flower: pip install 'fedsieve[flower]'.")
