"""The configuration of a run: one flat table of settings and the method's own options.

Read from TOML, changed by the command line or keywords, checked, and written back complete, so
that a run folder's `config.toml` runs again as it is.
"""

import dataclasses
import inspect
import io
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w

import fedsieve.methods  # noqa: F401 - registers the methods
from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.method import AnyMethod, method_class
from fedsieve.core.options import coerce, construct, in_range, spell
from fedsieve.data.dataset import InputScale
from fedsieve.wire.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; `auto` and none are filled in from the data."""

    method: str = "fedavg"  # see `fedsieve methods`
    dataset: str = "digits"  # see `fedsieve datasets`; npz:FILE or python:module:function
    model: str = "auto"  # see `fedsieve models`; auto fits the data
    init_from: str | None = None  # safetensors file whose tensors the model starts from
    partition: str = "auto"  # how data is split over clients; see `fedsieve partition --help`
    input_scale: InputScale = "standard"  # images: mean 0 and deviation 1, 0..1, or 0..255
    clients: int | None = None  # how many (20; natural partitions: all there are)
    cohort: int | None = None  # how many take part in a round (10, or all if fewer)
    rounds: int = 30  # communication rounds
    epochs: int = 2  # passes over a client's data in a round
    steps: int | None = None  # mini-batches in a round, in place of epochs
    batch_size: int = 16  # examples in a mini-batch
    drop_last: bool = False  # leave out a short last mini-batch
    validation: float = 0.0  # share of each client's training data held out
    score_on: Literal["test", "validation"] = "test"  # what accuracies are measured on
    seed: int = 0  # everything random follows from it
    wire: Precision = "fp32"  # floats in messages: exact, or rounded to bf16, fp16 or int8
    error_feedback: bool = False  # clients add what rounding took to their next message
    workers: int = 1  # processes that train clients side by side
    eval_every: int = 1  # rounds between evaluations
    checkpoint_every: int = 10  # rounds between checkpoints
    min_replies: int = 1  # stop if fewer clients give a usable answer
    save_messages: tuple[int, ...] = ()  # rounds whose messages are kept for `fedsieve inspect`
    state_ram_mb: int = 1000  # memory for client states; the rest is kept on disk
    data_root: str | None = None  # folder of the data files; also FEDSIEVE_DATA
    options: dict[str, Any] = field(default_factory=dict)  # the method's own

    def __post_init__(self) -> None:
        method_class(self.method)
        for name in ("rounds", "epochs", "batch_size", "workers", "eval_every", "checkpoint_every"):
            in_range(name, getattr(self, name), 1)
        for name in ("clients", "cohort", "steps"):
            if getattr(self, name) is not None:
                in_range(name, getattr(self, name), 1)
        in_range("min_replies", self.min_replies, 1)
        in_range("state_ram_mb", self.state_ram_mb, 1)
        in_range("seed", self.seed, 0, 2**63 - 1)
        in_range("validation", self.validation, 0, 0.9)
        if self.cohort is not None and self.clients is not None and self.cohort > self.clients:
            raise ConfigError(
                f"cohort={self.cohort} is more than clients={self.clients}: "
                "lower --cohort or raise --clients."
            )
        if self.score_on == "validation" and not self.validation:
            raise ConfigError("score_on='validation' needs held-out data: set validation=0.1, say.")
        if self.cohort is not None and self.min_replies > self.cohort:
            raise ConfigError(
                f"min_replies={self.min_replies} is more than cohort={self.cohort}: "
                "no round could ever be accepted."
            )


SETTINGS = tuple(f.name for f in dataclasses.fields(Config) if f.name != "options")


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
    for name in options:
        if name not in known:
            raise ConfigError(
                unknown(
                    f"setting or {settings.get('method', 'fedavg')} option",
                    name,
                    [*SETTINGS, *known],
                )
            )
    hints = get_type_hints(cls)
    where = settings.get("method", "fedavg")
    options = {n: coerce(v, hints[n], f"{where}: {n}") for n, v in options.items()}
    plain = {n: v for n, v in settings.items() if v is not None}
    return dataclasses.replace(construct(Config, plain, "config"), options=options)


def expanded(cls: type[AnyMethod], options: dict[str, Any]) -> dict[str, Any]:
    """Options with those of a `preset` in its place; others given beside it win."""
    if "preset" not in options or not cls.presets:
        return options
    given = {n: v for n, v in options.items() if n != "preset"}
    name = options["preset"]
    if name not in cls.presets:
        raise ConfigError(unknown(f"preset of {cls.__name__}", str(name), cls.presets))
    return {**cls.presets[name], **given}


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


def field_notes(cls: type) -> dict[str, str]:
    """What each field of a dataclass is for: the comment behind it, base classes included."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        for line in io.StringIO(inspect.getsource(base)):
            if match := re.match(r"    (\w+): .*?  # (.*)", line):
                notes[match[1]] = match[2].strip()
    return notes
