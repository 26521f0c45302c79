"""Short names that tell runs apart."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from fedsieve.core.method import method_class
from fedsieve.core.options import spell
from fedsieve.jobs.config import SETTINGS, Config, method_options
from fedsieve.jobs.library import Record
from fedsieve.jobs.settings import NOT_HASHED


def labels(records: Sequence[Record], but: Collection[str] = ()) -> list[str]:
    """The method's name, and where that is not enough the settings that tell it apart.

    Defaults go without saying, except for seeds: FedAvg beside itself at 8 bits is `fedavg` and
    `fedavg wire=int8 error_feedback`. Settings in `but` are not looked at.
    """
    tables = [_flat(record, but) for record in records]
    names = []
    for record, settings in zip(records, tables, strict=True):
        method = record.config.method
        rivals = [t for t, r in zip(tables, records, strict=True) if r.config.method == method]
        plain = _defaults(method)
        said = [
            name if value == "True" else f"{name}={value}"
            for name, value in settings.items()
            if any(rival.get(name) != value for rival in rivals)
            and (name == "seed" or plain.get(name) != value)
        ]
        names.append(" ".join([method, *said]))
    return names


def _flat(record: Record, but: Collection[str]) -> dict[str, str]:
    config = record.config
    plain = {n: getattr(config, n) for n in SETTINGS if n not in {*NOT_HASHED, *but, "method"}}
    return _spelled(plain | config.options)


def _defaults(method: str) -> dict[str, str]:
    options = method_options(method_class(method))
    known = {n: f.default for n, f in options.items() if f.default is not dataclasses.MISSING}
    return _spelled({n: getattr(Config(), n) for n in SETTINGS} | known)


def _spelled(values: dict[str, Any]) -> dict[str, str]:
    return {n: str(spell(v)) for n, v in values.items()}
