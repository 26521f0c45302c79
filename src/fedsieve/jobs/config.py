"""The configuration of a run: one flat table of settings and the method's own options.

Read from TOML, changed by the command line or keywords, checked, and written back complete, so
that a run folder's `config.toml` runs again as it is.
"""

import dataclasses
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

import fedsieve.methods  # noqa: F401 - registers the methods
from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.method import AnyMethod, method_class, registered
from fedsieve.core.options import coerce, construct, spell
from fedsieve.jobs.settings import SETTINGS, Config

__all__ = ["SETTINGS", "Config", "make"]
HIGHEST_RATE = 1000.0


def make(values: dict[str, Any]) -> Config:
    """A checked configuration from plain values.

    Names that are not settings are options of the method, so that `--set proximal=0.1`, a TOML
    table `[options]` and a keyword of `fedsieve.run` all reach it. `preset` stands for the options
    a method has under that name; those given beside it win.

    Raises:
        ConfigError: an unknown name (the nearest one is suggested) or a value that does not fit.
    """
    table = dict(values)
    options = table.pop("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"options={options!r}: expected a table [options] of name = value.")
    settings = {n: v for n, v in table.items() if n in SETTINGS}
    options = options | {n: v for n, v in table.items() if n not in SETTINGS}
    cls = method_class(str(settings.get("method", "fedavg")))
    options = expanded(cls, options)
    known = method_options(cls)
    where = str(settings.get("method", "fedavg"))
    for name in options:
        if name not in known:
            raise ConfigError(_no_option(name, where, known))
    hints = get_type_hints(cls)
    options = {n: coerce(v, hints[n], f"{where}: {n}") for n, v in options.items()}
    for name, value in options.items():
        is_rate = name.split("_")[-1] == "lr" and isinstance(value, float)
        if is_rate and value > HIGHEST_RATE:
            raise ConfigError(f"{where}: {name}={value!r}: must be <= {HIGHEST_RATE:g}.")
    plain = {n: v for n, v in settings.items() if v is not None}
    return dataclasses.replace(construct(Config, plain, "config"), options=options)


def _no_option(name: str, method: str, known: Iterable[str]) -> str:
    what = f"setting or {method} option"
    others = [other for other, cls in registered().items() if name in method_options(cls)]
    if not others:
        return unknown(what, name, [*SETTINGS, *known])
    return (
        f"unknown {what} {name!r}: it is one of {', '.join(others)}. Choose another --method, or "
        "leave it out."
    )


def expanded(cls: type[AnyMethod], options: dict[str, Any]) -> dict[str, Any]:
    """Options with those of a `preset` in its place; others given beside it win."""
    if "preset" not in options or not cls.presets:
        return options
    given = {n: v for n, v in options.items() if n != "preset"}
    presets = {"default": {}, **cls.presets}
    name = options["preset"]
    if name not in presets:
        raise ConfigError(unknown(f"preset of {cls.__name__}", str(name), presets))
    return {**presets[name], **given}


def read_toml(path: Path) -> dict[str, Any]:
    """The values in a TOML file.

    Raises:
        ConfigError: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from error


def to_toml(config: Config) -> str:
    """The configuration as TOML, complete and readable back."""
    values = {n: spell(getattr(config, n)) for n in SETTINGS}
    options = {n: spell(v) for n, v in sorted(config.options.items())}
    return tomli_w.dumps(values | {"options": options})


def method_options(cls: type[AnyMethod]) -> dict[str, dataclasses.Field[Any]]:
    """The hyper-parameters of a method class, in order."""
    return {f.name: f for f in dataclasses.fields(cls) if f.name != "task"}  # type: ignore[arg-type]
