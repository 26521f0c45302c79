"""`fedsieve run`."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fedsieve import api
from fedsieve.api import Watcher
from fedsieve.cli.progress import Lines, Live, Rows, print_summary
from fedsieve.config import read_toml
from fedsieve.core.errors import ConfigError


def run(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with settings; options below override it.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `fedsieve methods`.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="See `fedsieve datasets`; `npz:FILE`, `python:module:function`."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="See `fedsieve models`.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="How data is split, e.g. `dirichlet(0.5)`, `iid`, `natural`.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients per round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over local data per round.")] = None,
    steps: Annotated[int | None, typer.Option(help="Mini-batches per round, not epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per mini-batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the clients.")] = None,
    seed: Annotated[int | None, typer.Option(help="All randomness follows from it.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes training side by side.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of data files (or FEDSIEVE_DATA).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder: rows, result, checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting or method option."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Rows and result as JSON lines.")] = False,
) -> None:
    """Run a federated job.

    Without arguments: FedAvg on the embedded digits. Settings come from the TOML file, then from
    the options here; `--set` reaches everything else, e.g. `--set proximal=0.1`
    `--set "optimiser=adam(weight_decay=1e-4)"`.

    ```
    fedsieve run --method fedprox --rounds 50 --set proximal=0.1 --out runs/prox
    fedsieve run --out runs/prox --resume --rounds 100
    fedsieve run --dataset fashion_mnist --partition "dirichlet(0.2)" --clients 100 --workers 2
    ```
    """
    given = {
        "method": method,
        "dataset": dataset,
        "model": model,
        "partition": partition,
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "workers": workers,
        "eval_every": eval_every,
        "checkpoint_every": checkpoint_every,
        "data_root": None if data_root is None else str(data_root),
    }
    settings = read_toml(config) if config is not None else {}
    settings |= {name: value for name, value in given.items() if value is not None}
    settings |= dict(map(_pair, set_ or []))
    watcher = Rows() if json else Watcher() if quiet else _shown()
    with watcher:
        result = api.run(out=out, resume=resume, watcher=watcher, **settings)
    if json:
        typer.echo(msgspec.json.encode(result.summary).decode())
    else:
        print_summary(result.summary, out)
    if result.summary.stopped != "finished":
        raise typer.Exit(130)


def _shown() -> Watcher:
    live = Live()
    return live if live.is_terminal else Lines()


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError(f"--set {text!r}: write it as KEY=VALUE.")
    return name.strip(), value.strip()
