"""`fedsieve`: the commands, and how errors reach the user."""

import logging
import sys

import typer
from rich.console import Console
from rich.logging import RichHandler

from fedsieve.cli import (
    compare,
    deploy,
    export,
    inspect,
    lists,
    partition,
    plan,
    report,
    reproduce,
    run,
    sweep,
    tune,
    watch,
)
from fedsieve.core.errors import FedsieveError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Sparse, communication-efficient, probabilistic federated learning on PyTorch.",
)
app.command("run")(run.run)
app.command("watch")(watch.watch)
app.command("plan")(plan.plan)
app.command("reproduce")(reproduce.reproduce)
app.command("inspect")(inspect.inspect_path)
app.command("methods")(lists.methods)
app.command("datasets")(lists.datasets)
app.command("models")(lists.models)
app.command("partition")(partition.partition)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("compare")(compare.compare_runs)
app.command("sweep")(sweep.run_sweep)
app.command("tune")(tune.run_tune)
app.command("deploy")(deploy.deploy)
app.command("node")(deploy.node)
app.command("cert")(deploy.cert)


def main() -> None:
    """Entry point: a FedsieveError is one clear line and exit code 2, never a traceback."""
    console = Console(stderr=True)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_time=False, show_path=False)],
    )
    try:
        app()
    except FedsieveError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
