"""Options of the command line that name settings; `run` and `plan` share them."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from fedsieve.core.errors import ConfigError

Option = typer.Option
ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Argument(help="TOML file with settings; options override it.")
]
Method: TypeAlias = Annotated[str | None, Option(help="See `fedsieve methods`.")]
Dataset: TypeAlias = Annotated[
    str | None, Option(help="See `fedsieve datasets`; `npz:FILE`, `python:module:function`.")
]
Model: TypeAlias = Annotated[str | None, Option(help="See `fedsieve models`.")]
InitFrom: TypeAlias = Annotated[
    Path | None, Option(help="Safetensors file whose tensors the model starts from.")
]
Partition: TypeAlias = Annotated[
    str | None, Option(help="How data is split, e.g. `dirichlet(0.5)`, `iid`, `natural`.")
]
Clients: TypeAlias = Annotated[int | None, Option(help="Number of clients.")]
Cohort: TypeAlias = Annotated[int | None, Option(help="Clients per round.")]
Rounds: TypeAlias = Annotated[int | None, Option(help="Communication rounds.")]
Epochs: TypeAlias = Annotated[int | None, Option(help="Passes over local data per round.")]
Steps: TypeAlias = Annotated[int | None, Option(help="Mini-batches per round, not epochs.")]
BatchSize: TypeAlias = Annotated[int | None, Option(help="Examples per mini-batch.")]
Lr: TypeAlias = Annotated[float | None, Option(help="Learning rate of the clients.")]
Seed: TypeAlias = Annotated[int | None, Option(help="All randomness follows from it.")]
WireOption: TypeAlias = Annotated[
    str | None,
    Option(
        help="Floats in messages: `fp32` (exact), `bf16`, `fp16`, `int8`. What rounding loses is "
        "sent later with --set error_feedback=true."
    ),
]
Workers: TypeAlias = Annotated[int | None, Option(help="Processes training side by side.")]
DataRoot: TypeAlias = Annotated[
    Path | None, Option(help="Folder of data files (or FEDSIEVE_DATA).")
]
Set: TypeAlias = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Any other setting or method option."),
]


def collect(config: Path | None, set_: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Settings of the file, then of the options, then of `--set`."""
    from fedsieve.config import read_toml  # noqa: PLC0415 - as in `run`

    settings = read_toml(config) if config is not None else {}
    for name, value in given.items():
        if value is not None:
            settings[name] = str(value) if isinstance(value, Path) else value
    return settings | dict(map(_pair, set_ or []))


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError(f"--set {text!r}: write it as KEY=VALUE.")
    return name.strip(), value.strip()
