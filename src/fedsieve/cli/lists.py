"""`fedsieve methods`, `datasets` and `models`: what there is, and what it takes."""

import dataclasses
import inspect
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from fedsieve.cli import names
from fedsieve.cli import settings as s
from fedsieve.core.options import describe, name_of, spell


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one method with its options.",
            autocompletion=lambda incomplete: [
                n for n in names.methods() if n.startswith(incomplete)
            ],
        ),
    ] = None,
) -> None:
    """List methods, or explain one with all its options."""
    console = Console()
    if name is None:
        table = Table("method", "what it does", box=None)
        for known, words in names.methods().items():
            table.add_row(known, words)
        console.print(table)
        return
    from fedsieve.core.method import method_class
    from fedsieve.core.options import about
    from fedsieve.jobs.config import method_options

    cls = method_class(name)
    module = inspect.getmodule(cls)
    console.print((module.__doc__ or "").strip() if module else "", markup=False, highlight=False)
    table = Table(box=None)
    table.add_column("option", no_wrap=True)
    for head in ("default", "what it is", "allowed"):
        table.add_column(head, overflow="fold")
    hints = get_type_hints(cls)
    for option, field in method_options(cls).items():
        shown = (option, str(_default(field)), about(field), describe(hints[option]))
        table.add_row(*(text.replace("[", r"\[") for text in shown))
    console.print()
    console.print(table)
    for preset, values in cls.presets.items():
        text = ", ".join(f"{option}={spell(value)}" for option, value in values.items())
        console.print(f"preset={preset}: {text}", markup=False, highlight=False)


def datasets(
    data_root: s.DataRoot = None,
) -> None:
    """List data sets and whether their files are there."""
    from fedsieve.data.sources.registry import catalogue

    table = Table("data set", "what it is", "examples", "here", box=None)
    for line in catalogue(data_root):
        table.add_row(line.name, line.about, line.examples, "yes" if line.is_present else "no")
    table.add_row("npz:FILE", "arrays x, y, x_test, y_test of your own", "", "")
    table.add_row("python:module:function", "a function of yours that returns a Dataset", "", "")
    Console().print(table)


def models() -> None:
    """List models and their options."""
    from fedsieve.models.zoo.registry import MODELS

    table = Table("model", "what it is", "options", box=None)
    for cls in MODELS:
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        options = ", ".join(f"{f.name}={_default(f)}" for f in fields)
        table.add_row(name_of(cls), first_line(cls), options.replace("[", r"\["))
    Console().print(table)


def first_line(thing: Any) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is dataclasses.MISSING:
        return "(needed)" if field.default_factory is dataclasses.MISSING else "[]"
    return spell(field.default)
