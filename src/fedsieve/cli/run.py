"""`fedsieve run`."""

from pathlib import Path
from typing import Annotated

import typer

from fedsieve.cli import settings as s


@s.with_settings
def run(
    settings: s.Given,
    out: Annotated[Path | None, typer.Option(help="Run folder: rows, result, checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Play a deployment's run folder again on this machine.")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="WHERE", help="Also log to `tensorboard:DIR` or `mlflow:URI`."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Rows and result as JSON lines.")] = False,
) -> None:
    """Run a federated job.

    Without arguments: FedAvg on the embedded digits. Settings come from the TOML file, then from
    the flags. Options of the method (`fedsieve methods NAME`) are flags too: `--lr 0.05`,
    `--optimiser "adam(weight_decay=1e-4)"`, or `--set lr=0.05`.

    ```
    fedsieve run --method fedprox --rounds 50 --proximal 0.1 --out runs/prox
    fedsieve run --out runs/prox --resume --rounds 100
    fedsieve run --dataset fashion_mnist --partition "dirichlet(0.2)" --clients 100 --workers 2
    fedsieve run --out runs/long --track tensorboard:boards/long
    ```
    """
    from fedsieve.cli.progress import Rows, conclude
    from fedsieve.jobs import api
    from fedsieve.jobs.progress import shown
    from fedsieve.jobs.trackers import Several, tracker

    view = Rows() if json else api.Watcher() if quiet else shown()
    watcher = Several(view, *map(tracker, track or []))
    with watcher:
        result = api.run(
            out=out,
            resume=resume,
            replay=replay,
            watcher=watcher,
            **settings,
        )
    conclude(result.summary, out, as_json=json)
