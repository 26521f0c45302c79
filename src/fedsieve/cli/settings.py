"""Flags for settings: every one that is declared, for every command that takes settings."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from fedsieve.cli import names
from fedsieve.core.errors import ConfigError
from fedsieve.core.options import coerce
from fedsieve.jobs.settings import SETTINGS, Config

Given: TypeAlias = dict[str, Any]
DataRoot: TypeAlias = Annotated[Path | None, typer.Option(help=SETTINGS["data_root"].about)]
_ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Argument(help="TOML file with settings; flags override it.")
]
_Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An option of the method, or any setting; for options also `--key value`.",
    ),
]
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_COMPLETIONS: dict[str, Callable[[], Iterable[str]]] = {
    "method": names.methods,
    "dataset": names.datasets,
    "model": names.models,
}
FEEDBACK = "--error-feedback"
_OPTIONAL = {FEEDBACK: "true", "--no-error-feedback": "false"}  # flags that may go without a value
MISSPELT = 0.8  # nearer than that, a flag is a misspelt setting and no option of a method


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a configuration file, a flag for every setting and `--set` in front.

    It gets what was given as its first argument. Flags it has of its own stay its own.
    """
    arguments = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    flags = {name: _flag(name) for name in SETTINGS if name not in {p.name for p in arguments}}

    def call(config: Path | None, set_: list[str] | None, **values: Any) -> None:
        given = {name: values.pop(name) for name in flags}
        command(_collected(config, set_, given), **values)

    kinds = {"config": _ConfigFile, **flags, "set_": _Set}
    parameters = [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for n, kind in kinds.items()
    ]
    parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in arguments]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call


class Command(TyperCommand):
    """A command; where it takes `--set`, flags it does not know are options of the method."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {flag: p for p in self.params for flag in (*p.opts, *p.secondary_opts)}
        return super().parse_args(ctx, _spelled_out(args, known) if "--set" in known else args)


def _spelled_out(args: list[str], known: dict[str, Any]) -> list[str]:
    """Arguments with `--target-density 0.2` written as `--set target_density=0.2`."""
    spelled, rest = list[str](), list(args)
    while rest:
        word = rest.pop(0)
        flag, is_whole, value = word.partition("=")
        if word == "--":
            return [*spelled, word, *rest]
        if flag in _OPTIONAL:
            if not is_whole:
                has_value = flag == FEEDBACK and rest and not _is_flag_or_file(rest[0])
                value = rest.pop(0) if has_value else _OPTIONAL[flag]
            spelled += [FEEDBACK, value]
            continue
        if flag in known or flag == "--help" or not flag.startswith("--"):
            spelled.append(word)
            takes_value = not is_whole and not getattr(known.get(flag), "is_flag", True)
            if takes_value and flag.startswith("-") and rest:
                spelled.append(rest.pop(0))
            continue
        name = flag[2:].replace("-", "_")
        flags = {f[2:].replace("-", "_"): f for f in known if f.startswith("--")}
        if near := get_close_matches(name, flags, n=1, cutoff=MISSPELT):
            raise ConfigError(f"there is no {flag}. Did you mean {flags[near[0]]}?")
        if not is_whole and rest and not rest[0].startswith("--") and rest[0] not in known:
            value = rest.pop(0)
        elif not is_whole:
            value = "false" if name.startswith("no_") else "true"
            name = name.removeprefix("no_")
        spelled += ["--set", f"{name}={value}"]
    return spelled


def _is_flag_or_file(word: str) -> bool:
    return word.startswith("-") or word.endswith(".toml") or Path(word).is_file()


def _flag(name: str) -> Any:
    """The type of a command's parameter for a setting: text, read as a line of TOML would be."""
    known, hint = SETTINGS[name], get_type_hints(Config)[name]
    default = getattr(Config, name)
    word = "--" + name.replace("_", "-")
    if hint is bool:
        pair = f"{word}/--no-{word[2:]}"
        option = typer.Option(pair, help=known.about, rich_help_panel=known.group)
        return Annotated[bool | None, option]
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    plain = next((kind for kind in (hint, *get_args(hint)) if kind in _METAVARS), str)
    complete: Callable[[], Iterable[str]] = _COMPLETIONS.get(name, lambda: choices)
    option = typer.Option(
        word,
        help=known.about
        if default is False or default in {None, ()}
        else f"{known.about[:-1]} ({default}).",
        metavar=known.metavar or "|".join(choices) or _METAVARS[plain],
        show_default=False,
        rich_help_panel=known.group,
        autocompletion=lambda incomplete: [n for n in complete() if n.startswith(incomplete)],
    )
    return Annotated[str | None, option]


def _collected(config: Path | None, set_: list[str] | None, given: Given) -> Given:
    """Settings of the file, then of the flags, then of `--set`."""
    flags = {name: value for name, value in given.items() if value is not None}
    flags |= dict(map(_pair, set_ or []))
    hints = get_type_hints(Config)
    read = {n: coerce(v, hints[n], n) if n in SETTINGS else v for n, v in flags.items()}
    if config is None:
        return read
    from fedsieve.jobs.config import read_toml

    return read_toml(config) | read


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text!r}: write it as KEY=VALUE.")
    return name.strip(), value.strip()
