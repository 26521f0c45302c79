"""`fedsieve`: the commands, and how errors reach the user."""

import logging
import sys
import warnings
from collections.abc import Collection
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler

from fedsieve.core.errors import FedsieveError


class Command(NamedTuple):
    """Where a command is, and what the list of all commands says about it."""

    module: str
    function: str
    about: str


COMMANDS = {
    "demo": Command("demo", "demo", "Run seven methods on embedded data and compare them."),
    "run": Command("run", "run", "Run a federated job."),
    "watch": Command(
        "watch",
        "watch",
        "Follow a running job: scores, bytes, density, time left, and curves over its rounds.",
    ),
    "plan": Command("plan", "plan", "Predict bytes, FLOPs, memory and time of a run."),
    "reproduce": Command(
        "reproduce",
        "reproduce",
        "Run a table of a paper again and compare, or list the tables there are.",
    ),
    "inspect": Command(
        "inspect",
        "inspect_path",
        "Show what every byte of a message is, or where the bytes of a run went.",
    ),
    "methods": Command("lists", "methods", "List methods, or explain one with all its options."),
    "datasets": Command("lists", "datasets", "List data sets and whether their files are there."),
    "models": Command("lists", "models", "List models and their options."),
    "partition": Command(
        "partition",
        "partition",
        "Split a data set over clients and show sizes, skew and fingerprint.",
    ),
    "verify": Command(
        "verify",
        "verify_run",
        "Check every file of a run against what was written, and say what it can go on from.",
    ),
    "export": Command(
        "export",
        "export",
        "Write a run's or a client's model as a smaller dense network with equal outputs.",
    ),
    "report": Command(
        "report",
        "report",
        "Write one self-contained HTML page about runs: results, curves, bytes, masks, clients.",
    ),
    "compare": Command("compare", "compare_runs", "Compare runs: which is best, at what cost."),
    "sweep": Command("sweep", "run_sweep", "Run every combination of settings, for several seeds."),
    "tune": Command(
        "tune", "run_tune", "Tune settings by random search; test data is not looked at."
    ),
    "deploy": Command("deploy", "deploy", "Run a job on nodes that hold the data (server side)."),
    "node": Command(
        "deploy", "node", "Take part in a deployment (client side); data never leaves this machine."
    ),
    "cert": Command("deploy", "cert", "Make certificates and keys for a deployment."),
}


def application(called: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """The command line, with only the `called` commands imported: torch takes seconds."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        help="Sparse, communication-efficient, probabilistic federated learning on PyTorch.",
    )
    app.callback()(_options)
    for name, (module, function, about) in COMMANDS.items():
        if name in called:
            app.command(name)(getattr(import_module(f"fedsieve.cli.{module}"), function))
        else:
            app.command(name, help=about)(_listed)
    return app


def _show_version(is_asked: bool) -> None:  # noqa: FBT001 (typer's callbacks)
    if is_asked:
        typer.echo(f"fedsieve {version('fedsieve')}, torch {version('torch')}")
        raise typer.Exit


def _options(
    is_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def _listed() -> None:
    """Stands for a command that is not called."""


def main() -> None:
    """Entry point: a FedsieveError is one clear line and exit code 2, never a traceback."""
    console = Console(stderr=True)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_time=False, show_path=False)],
    )
    logging.captureWarnings(capture=True)
    warnings.formatwarning = lambda message, *_: str(message)  # without the line of our source
    try:
        application(sys.argv[1:2])()
    except FedsieveError as error:
        _refuse(console, str(error))
    except OSError as error:  # a path that cannot be used, a full disk
        _refuse(console, f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))


def _refuse(console: Console, why: str) -> NoReturn:
    console.print(f"error: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
