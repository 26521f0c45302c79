"""`fedsieve tune`: random search on held-out training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from fedsieve.cli import settings as s
from fedsieve.cli.compare import console, narrow, plain, score
from fedsieve.cli.sweep import Jobs, Root, teller

if TYPE_CHECKING:
    from fedsieve.jobs.tune import Tuned


@s.with_settings
def run_tune(
    settings: s.Given,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=RANGE",
            help="`log(LOW,HIGH)`, `uniform(LOW,HIGH)`, `int(LOW,HIGH)` or `choice(A,B,...)`; "
            "repeatable.",
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="A,B", help="Methods; each gets all the trials.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Random settings tried for each method.")] = 20,
    seeds: Annotated[int, typer.Option(help="Final runs, from the job's own seed on.")] = 1,
    trial_seeds: Annotated[
        int | None,
        typer.Option(help="Runs of every trial, whose mean counts; else as many as --seeds."),
    ] = None,
    tuning_rounds: Annotated[
        int | None, typer.Option(help="Rounds of a trial; else as many as the final run.", min=1)
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="`best` or `last` evaluation, `global_accuracy` or `local_accuracy`, or both: "
            "`last_local_accuracy`."
        ),
    ] = "best",
    final: Annotated[
        bool, typer.Option(help="Run the best setting on test data, as the job says.")
    ] = True,
    workers: Jobs = 1,
    root: Root = Path("runs/library"),
    json: Annotated[bool, typer.Option("--json", help="The searches as JSON lines.")] = False,
) -> None:
    """Tune settings by random search; test data is not looked at.

    Trials are scored on a tenth of each client's training data, held out (more if the job has a
    larger `validation`). A trial that diverges counts as worst. Then the best setting is run with
    the job as it is and scored on test data once, and `tuning.json` in its folder tells
    `fedsieve compare` how many trials it took.

    The search follows from the job's seed: the same command finds the same settings, runs only
    what is missing, and more `--trials` go on where fewer ended.

    ```
    fedsieve tune job.toml --space "lr=log(1e-4,1e-1)" --space "proximal=uniform(0,1)"
    fedsieve tune --method fedavg,fedprox --space "lr=log(1e-3,1)" --space "proximal=log(1e-3,1)"
    fedsieve tune --space "epochs=int(1,5)" --space "optimiser=choice(sgd,adam)" --workers 2
    ```
    """
    from fedsieve.jobs.search_space import read_space
    from fedsieve.jobs.tune import tune

    ranges = read_space(space or [])
    try:
        results = tune(
            settings,
            ranges,
            root,
            methods=[name.strip() for name in method.split(",")] if method else (),
            trials=trials,
            seeds=seeds,
            trial_seeds=trial_seeds,
            rounds=tuning_rounds,
            metric=metric,
            final=final,
            workers=workers,
            on_done=None if json else teller(["method", *ranges, "seed", "score_on"]),
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    if json:
        for tuned in results:
            typer.echo(msgspec.json.encode(tuned.tuning).decode())
        return
    _table(results)


def _table(results: list[Tuned]) -> None:
    from fedsieve.jobs.library import TUNING_FILE
    from fedsieve.report.budget import figure

    table = narrow("method", "trials", "diverged", "validation", "test", "best setting")
    for tuning, records in results:
        field = tuning.metric.removeprefix("best_")
        tested = figure(getattr(r.summary, field) for r in records) if tuning.final else None
        table.add_row(
            tuning.method,
            str(tuning.trials),
            str(sum(trial.score is None for trial in tuning.scores)),
            f"{tuning.best_score:.4f}",
            score(tested),
            plain(" ".join(f"{n}={v}" for n, v in tuning.best.items())),
        )
    console().print(table)
    for _, records in results:
        for record in records:
            typer.echo(str(record.path / TUNING_FILE))
