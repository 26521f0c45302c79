"""`fedsieve`: the commands, and how errors reach the user."""

import logging
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from typer.core import TyperGroup

from fedsieve.cli.settings import Command
from fedsieve.core.errors import ConfigError, FedsieveError, unknown

# Where each command is. Their modules import what is heavy when they are called, so that help,
# completion and wrong arguments are answered at once.
COMMANDS = {
    "run": "run.run",
    "watch": "watch.watch",
    "plan": "plan.plan",
    "reproduce": "reproduce.reproduce",
    "inspect": "inspect.inspect_path",
    "methods": "lists.methods",
    "datasets": "lists.datasets",
    "models": "lists.models",
    "partition": "partition.partition",
    "verify": "verify.verify_run",
    "export": "export.export",
    "report": "report.report",
    "compare": "compare.compare_runs",
    "demo": "demo.demo",
    "sweep": "sweep.run_sweep",
    "tune": "tune.run_tune",
    "deploy": "deploy.deploy",
    "node": "deploy.node",
    "cert": "deploy.cert",
}


class Commands(TyperGroup):
    """All commands; the nearest one is suggested for a name that is none, once."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise ConfigError(unknown("command", name, self.commands))
        return super().resolve_command(ctx, args)


def application() -> typer.Typer:
    """The command line."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        help="Sparse, communication-efficient, probabilistic federated learning on PyTorch.",
    )
    app.callback()(_options)
    for name, where in COMMANDS.items():
        module, function = where.split(".")
        home = import_module(f"fedsieve.cli.{module}")
        app.command(name, cls=Command)(getattr(home, function))
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
        application()()
    except FedsieveError as error:
        _refuse(console, str(error))
    except OSError as error:  # a path that cannot be used, a full disk
        _refuse(console, f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))


def _refuse(console: Console, why: str) -> NoReturn:
    console.print(f"error: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
