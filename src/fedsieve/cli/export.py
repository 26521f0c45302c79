"""`fedsieve export`: the model of a finished run, cut to what is in use."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for the model.")],
    client: Annotated[
        int | None, typer.Option(help="Whose model, where each client has its own.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data files.")] = None,
) -> None:
    """Write a run's or a client's model as a smaller dense network with equal outputs.

    Pruned filters, units and features are cut out; what constant channels add goes into biases.
    The folder gets `model.safetensors` and `model.json`; `fedsieve.export.load(DIR)` makes a torch
    module of them.
    """
    from fedsieve.export import export_run
    from fedsieve.jobs.api import one_thread

    with one_thread():
        exported = export_run(run, out, data_root, client)
    for name, ours, whole in (
        ("parameters", exported.values, exported.whole_values),
        ("MACs", exported.macs, exported.whole_macs),
    ):
        typer.echo(f"{name:<10}  {ours:>13,} of {whole:,}  ({ours / whole:.1%})")
    typer.echo(str(out))
