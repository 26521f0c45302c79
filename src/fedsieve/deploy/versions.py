"""Versions of what is used beyond its public interface."""

from collections.abc import Sequence
from importlib.metadata import version

from fedsieve.core.errors import ConfigError


def check_version(package: str, allowed: Sequence[str], remedy: str) -> None:
    """Raise ConfigError unless `package` is installed in one of the `allowed` minor versions."""
    found = version(package)
    if ".".join(found.split(".")[:2]) not in allowed:
        known = " and ".join(allowed)
        raise ConfigError(f"{package} {found}: deployments run on {package} {known}. {remedy}")
