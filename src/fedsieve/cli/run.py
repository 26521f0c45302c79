"""`fedsieve run`."""

from pathlib import Path
from typing import Annotated

import typer

from fedsieve.cli import settings as s


def run(
    config: s.ConfigFile = None,
    method: s.Method = None,
    dataset: s.Dataset = None,
    model: s.Model = None,
    init_from: s.InitFrom = None,
    partition: s.Partition = None,
    clients: s.Clients = None,
    cohort: s.Cohort = None,
    rounds: s.Rounds = None,
    epochs: s.Epochs = None,
    steps: s.Steps = None,
    batch_size: s.BatchSize = None,
    lr: s.Lr = None,
    seed: s.Seed = None,
    wire: s.WireOption = None,
    workers: s.Workers = None,
    data_root: s.DataRoot = None,
    eval_every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints.")
    ] = None,
    save_messages: Annotated[
        str | None, typer.Option(metavar="1,10", help="Rounds whose messages are kept whole.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder: rows, result, checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Play a deployment's run folder again on this machine.")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="WHERE", help="Also log to `tensorboard:DIR` or `mlflow:URI`."),
    ] = None,
    set_: s.Set = None,
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
    fedsieve run --out runs/long --track tensorboard:boards/long
    ```
    """
    # torch takes seconds: help and wrong options are answered before.
    from fedsieve import api  # noqa: PLC0415
    from fedsieve.cli.progress import Rows, conclude, shown  # noqa: PLC0415
    from fedsieve.trackers import Several, tracker  # noqa: PLC0415

    given = {
        "method": method,
        "dataset": dataset,
        "model": model,
        "init_from": init_from,
        "partition": partition,
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "wire": wire,
        "workers": workers,
        "data_root": data_root,
        "eval_every": eval_every,
        "checkpoint_every": checkpoint_every,
        "save_messages": save_messages,
    }
    view = Rows() if json else api.Watcher() if quiet else shown()
    watcher = Several(view, *map(tracker, track or []))
    with watcher:
        result = api.run(
            out=out,
            resume=resume,
            replay=replay,
            watcher=watcher,
            **s.collect(config, set_, given),
        )
    conclude(result.summary, out, as_json=json)
