"""Errors a user may meet. Each says the place, the value, the rule and the way out."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedsieveError(Exception):
    """Base of all errors raised on purpose; the command line prints it without a traceback."""


class ConfigError(FedsieveError, ValueError):
    """A setting is unknown, of the wrong type, or cannot work."""


class DataError(FedsieveError):
    """Data is missing, malformed or cannot be split as asked."""


class ModelError(FedsieveError):
    """A model cannot be built, or its layer graph cannot be traced."""


class WireError(FedsieveError):
    """Bytes that are not a valid message; says what was expected and what was found."""


class ResumeError(FedsieveError):
    """A run folder cannot be continued."""


class StorageError(FedsieveError):
    """A run folder cannot be written; what was finished before is kept."""


class RoundError(FedsieveError):
    """Too few clients answered; everything done so far is kept."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Sentence for a name that is not in `known`, with the nearest one suggested."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(names)}."
