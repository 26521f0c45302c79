"""Checks versions of packages whose private interfaces are used."""

from collections.abc import Sequence
from importlib.metadata import version

from fedsieve.core.errors import ConfigError


def check_version(package: str, allowed: Sequence[str], remedy: str) -> None:
    """Raise ConfigError unless `package` is installed in one of the `allowed` minor versions."""
    installed = version(package)
    if ".".join(installed.split(".")[:2]) not in allowed:
        known = " and ".join(allowed)
        raise ConfigError(f"{package} {installed}: deployments run on {package} {known}. {remedy}")
