"""Options as text: `dirichlet(alpha=0.2)` <-> the frozen dataclass Dirichlet(alpha=0.2).

Every choice with parameters of its own (partition, model, optimiser, schedule, a method's fields)
is a frozen dataclass. This module reads such values from configuration files and the command line,
checks names and types, and spells them back so that a stored configuration can be run again.
"""

import ast
import dataclasses
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedsieve.core.errors import ConfigError, unknown

T = TypeVar("T")
_LARGEST = sys.float_info.max
# What Python's own reader of literals raises on odd or deeply nested text.
_UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)


def option(default: T, about: str) -> T:
    """A field of a dataclass with its default and its help text.

    ```python
    lr: float = option(0.1, "client learning rate")
    ```
    """
    return dataclasses.field(default=default, metadata={"about": about})


def about(field: dataclasses.Field[Any]) -> str:
    """The help text of a field that `option` made; empty for others."""
    return str(field.metadata.get("about", ""))


def name_of(cls: type) -> str:
    """The spelled name of an option class: its own in snake case."""
    return snake_case(cls.__name__)


def snake_case(name: str) -> str:
    """`CamelCase` as `camel_case`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def read(text: str, choices: Iterable[type[T]], what: str) -> T:
    """Read `name` or `name(arg, key=value)` as one of the dataclasses in `choices`.

    Raises:
        ConfigError: the text is not of that form, the name is unknown, or an argument does not fit.
    """
    known = {name_of(c): c for c in choices}
    name, args, named = _parse(text, what)
    if name not in known:
        raise ConfigError(unknown(what, name, known))
    cls = known[name]
    fields = [f.name for f in _settable(cls)]
    if len(args) > len(fields):
        raise ConfigError(
            f"{what} {text!r}: {name} takes at most {len(fields)} arguments ({', '.join(fields)})."
        )
    pairs = [*zip(fields, args, strict=False), *named]
    times = Counter(field for field, _ in pairs)
    if twice := [field for field in times if times[field] > 1]:
        raise ConfigError(f"{what} {text!r}: {', '.join(twice)} is given twice.")
    return construct(cls, dict(pairs), f"{what} {name}")


def construct(cls: type[T], values: Mapping[str, Any], where: str, **given: Any) -> T:
    """Build dataclass `cls` from plain values, checking names and types; `given` goes in as it is.

    Raises:
        ConfigError: an unknown or missing name, or a value of the wrong type.
    """
    hints = get_type_hints(cls)
    names = {f.name: f for f in _settable(cls) if f.name not in given}
    for name in values:
        if name not in names:
            raise ConfigError(f"{where}: {unknown('option', name, names)}")
    ready = {n: coerce(v, hints[n], f"{where}: {n}") for n, v in values.items()}
    missing = [n for n, f in names.items() if n not in ready and _is_required(f)]
    if missing:
        raise ConfigError(f"{where}: needs a value for {', '.join(missing)}.")
    return cls(**ready, **given)


def coerce(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint`, or ConfigError saying what was expected."""
    members = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    if value is None or value == "none":
        if types.NoneType in members:
            return None
        raise ConfigError(f"{where}={value!r}: expected {describe(hint)}.")
    plain = [m for m in members if m is not types.NoneType]
    options = [m for m in plain if isinstance(m, type) and dataclasses.is_dataclass(m)]
    if isinstance(value, str) and options:
        return read(value, options, f"value of {where}")
    for member in plain:
        fits, result = _fit(value, member, where)
        if fits:
            return result
    raise ConfigError(f"{where}={value!r}: expected {describe(hint)}.")


def spell(value: Any) -> Any:
    """The plain value (str, number, bool, list) that `coerce` reads back as `value`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(
            f"{f.name}={_literal(getattr(value, f.name))}" for f in _settable(type(value))
        )
        return f"{name_of(type(value))}({inner})" if inner else name_of(type(value))
    if value is None:
        return "none"
    return [spell(v) for v in value] if isinstance(value, tuple) else value


def brief(value: Any) -> Any:
    """As `spell`, without arguments that have their default: new ones leave the text as it was."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {
            f.name: getattr(value, f.name) for f in _settable(type(value)) if _is_set(value, f)
        }
        inner = ", ".join(f"{name}={_literal(v, brief)}" for name, v in given.items())
        return f"{name_of(type(value))}({inner})" if inner else name_of(type(value))
    return [brief(v) for v in value] if isinstance(value, tuple) else spell(value)


def describe(hint: Any) -> str:
    """What a type hint allows, in words for an error or a help page."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return " or ".join(describe(a) for a in args)
    if origin is Literal:
        return " | ".join(repr(a) for a in args)
    if origin is tuple:
        return f"a list of {describe(args[0])}"
    if hint is types.NoneType:
        return "none"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"{name_of(hint)}({', '.join(f.name for f in _settable(hint))})"
    named = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return named.get(hint, str(hint))


def in_range(
    where: str,
    value: float,
    low: float,
    high: float = float("inf"),
    *,
    above: bool = False,
    below: bool = False,
) -> None:
    """Raise ConfigError unless low <= value <= high (`above`: low < value; `below`: < high)."""
    fits_low = low < value if above else low <= value
    fits_high = value < high if below else value <= high
    if not (fits_low and fits_high):
        bound = f"{'>' if above else '>='} {_digits(low)}"
        if high < float("inf"):
            bound += f" and {'<' if below else '<='} {_digits(high)}"
        elif below:
            bound += " and finite"
        raise ConfigError(f"{where}={value!r}: must be {bound}.")


def _digits(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _fit(value: Any, hint: Any, where: str) -> tuple[bool, Any]:
    if get_origin(hint) is Literal:
        return value in get_args(hint), value
    if get_origin(hint) is tuple:
        items = _listed(value)
        return items is not None, tuple(coerce(v, get_args(hint)[0], where) for v in items or ())
    if hint is bool:
        words = {"true": True, "false": False}
        value = words.get(value.lower(), value) if isinstance(value, str) else value
        return isinstance(value, bool), value
    if hint in {int, float}:
        return _number(value, hint)
    return isinstance(hint, type) and isinstance(value, hint), value


def _number(value: Any, kind: type) -> tuple[bool, Any]:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except _UNREADABLE:
            return False, value
    # Beyond the range of a float there is no number that `spell` could write and `read` take back.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return False, value
    if kind is int:
        is_whole = isinstance(value, int) or value.is_integer()
        return is_whole, int(value) if is_whole else value
    return True, float(value)


def _listed(value: Any) -> Sequence[Any] | None:
    if isinstance(value, str):
        items = (v.strip(" \"'") for v in value.strip("[]() ").split(","))
        return [item for item in items if item]
    if isinstance(value, list | tuple):
        return value
    return [value] if isinstance(value, int | float) else None


def _parse(text: str, what: str) -> tuple[str, list[Any], list[tuple[str, Any]]]:
    """Name, positional and named arguments of `name` or `name(value, key=value)`."""
    how = f"{what} {text!r}: write it as name or name(value, key=value)."
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], []
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            named = [(k.arg or "", _value(k.value)) for k in tree.keywords]
            return tree.func.id, [_value(a) for a in tree.args], named
    except _UNREADABLE as error:
        raise ConfigError(how) from error
    raise ConfigError(how)


def _value(node: ast.expr) -> Any:
    """A literal, or the text of a nested option such as `iid` or `dirichlet(0.2)`."""
    if isinstance(node, ast.Name | ast.Call):
        return ast.unparse(node)
    return ast.literal_eval(node)


def _literal(value: Any, spelled: Callable[[Any], Any] = spell) -> str:
    if dataclasses.is_dataclass(value):
        return str(spelled(value))
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


def _settable(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.init]


def _is_set(value: Any, field: dataclasses.Field[Any]) -> bool:
    return _is_required(field) or bool(getattr(value, field.name) != default_of(field))


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field; MISSING if it has none."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
