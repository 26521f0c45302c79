"""A run keeps its place in a library: new options leave hashes alone, changed defaults do not.

python tests/jobs/test_run_hash.py    # writes the defaults of today, once versions are raised
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedsieve.methods  # noqa: F401 - registers the methods
from fedsieve.core.method import registered
from fedsieve.core.options import brief, default_of, spell
from fedsieve.data.partitions.schemes import PARTITIONS
from fedsieve.jobs import library
from fedsieve.jobs.config import SETTINGS, Config, method_options
from fedsieve.jobs.settings import NOT_HASHED
from fedsieve.methods.fedavg import FedAvg

STORED = Path(__file__).parent / "defaults.json"
METHODS = {n: cls for n, cls in registered().items() if cls.__module__.startswith("fedsieve.")}


def defaults() -> dict[str, Any]:
    """Every default that decides results, beside the number that a change of it must raise."""
    plain = Config()
    deciding = {n: spell(getattr(plain, n)) for n in SETTINGS if n not in NOT_HASHED}
    partitions = {
        f"{cls.__name__}.{f.name}": spell(value)
        for cls in PARTITIONS
        for f in dataclasses.fields(cls)
        if (value := default_of(f)) is not dataclasses.MISSING
    }
    options = {
        name: {"version": cls.version}
        | {n: spell(default_of(f)) for n, f in method_options(cls).items()}
        for name, cls in METHODS.items()
    }
    return {"all methods": {"version": library.FORMAT} | deciding | partitions, **options}


@pytest.mark.parametrize("name", ["all methods", *METHODS])
def test_a_default_changes_with_its_version_alone(name):
    stored, now = json.loads(STORED.read_text()).get(name, {}), defaults()[name]
    where = "FORMAT of jobs/library.py" if name == "all methods" else f"`version` of {name}"
    changed = {n for n, value in now.items() if n in stored and stored[n] != value}
    assert not changed or "version" in changed, f"{changed} changed: raise {where}"
    assert now == stored, f"python {Path(__file__).name} stores what is new: {changed or now}"


def test_a_new_setting_or_option_leaves_hashes_as_they_are(monkeypatch):
    base = library.run_hash({"method": "fedavg", "lr": 0.2, "partition": "dirichlet(0.3)"})

    @dataclass(frozen=True, kw_only=True)
    class Grown(FedAvg):
        added: float = 0.5

    monkeypatch.setattr(library, "method_class", lambda name: Grown)
    assert library.run_hash({"method": "fedavg", "lr": 0.2, "partition": "dirichlet(0.3)"}) == base


def test_a_setting_that_is_given_counts_though_it_is_new():
    base = {"method": "fedavg", "rounds": 3}
    assert library.run_hash(base | {"aggregation": "median"}) != library.run_hash(base)
    assert library.run_hash(base | {"aggregation": "mean"}) == library.run_hash(base)


@pytest.mark.parametrize("number", ["FORMAT", "version"])
def test_code_that_gives_other_results_raises_a_number(number, monkeypatch):
    base = library.run_hash({"method": "fedavg"})
    other = library.run_hash({"method": "fediter_ht"})
    if number == "FORMAT":
        monkeypatch.setattr(library, "FORMAT", library.FORMAT + 1)
    else:
        monkeypatch.setattr(FedAvg, "version", FedAvg.version + 1)
    assert library.run_hash({"method": "fedavg"}) != base
    assert (library.run_hash({"method": "fediter_ht"}) == other) == (number == "version")


def test_arguments_at_their_default_are_left_out():
    @dataclass(frozen=True)
    class Inner:
        rate: float = 0.1

    @dataclass(frozen=True)
    class Outer:
        alpha: float
        inner: Inner = Inner()
        sizes: tuple[int, ...] = ()

    assert brief(Outer(1.0)) == "outer(alpha=1.0)"
    assert brief(Outer(1.0, Inner(0.2))) == "outer(alpha=1.0, inner=inner(rate=0.2))"
    assert brief((Inner(), Inner(0.2))) == ["inner", "inner(rate=0.2)"]
    assert brief(None) == "none"


if __name__ == "__main__":
    STORED.write_text(json.dumps(defaults(), indent=1) + "\n")
