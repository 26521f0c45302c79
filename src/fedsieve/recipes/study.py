"""Carry out a study: try every cell with every seed, and put all rows beside what is expected.

Trials are kept as JSON in the library of runs, named by the hash of all that decides them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedsieve.core.errors import ConfigError, unknown
from fedsieve.core.keys import fold
from fedsieve.data.sources.registry import load
from fedsieve.engine import disk
from fedsieve.jobs import library
from fedsieve.jobs.config import make
from fedsieve.jobs.job import canonical
from fedsieve.recipes.recipe import Expected, Settings, Study, TierName, Trial, judge, measured
from fedsieve.recipes.runner import Line, Outcome


def carry_out(
    study: Study,
    tier: TierName,
    root: Path,
    *,
    seeds: int = 1,
    data_root: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """The table of a study over seeds 0 .. seeds-1; trials in the library are used again.

    An interrupt ends the work early; the outcome then holds what was finished.

    Raises:
        ConfigError: the study has no such tier, or a setting is wrong; before anything runs.
        DataError: a data set is missing; before anything runs.
    """
    if tier not in study.tiers:
        raise ConfigError(unknown(f"tier of {study.name}", tier, study.tiers))
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}: at least one is needed.")
    extra: dict[str, Any] = {} if data_root is None else {"data_root": str(data_root)}
    cells = study.tiers[tier].cells
    trials = {
        (cell, seed): {**settings, **extra, "seed": seed}
        for seed in range(seeds)
        for cell, settings in cells.items()
    }
    for settings in trials.values():
        canonical(make(settings))
    if any(not _path(study, settings, root).exists() for settings in trials.values()):
        for name in study.datasets(tier):
            load(name, data_root, fold(0, "dataset"))
    done: dict[tuple[str, int], Trial] = {}
    try:
        for (cell, seed), settings in trials.items():
            path = _path(study, settings, root)
            if not path.exists():
                watch(f"{cell}, seed {seed}")
                _write(path, study.measure(settings))
            done[cell, seed] = msgspec.json.decode(path.read_bytes(), type=Trial)
    except KeyboardInterrupt:
        pass
    lines = [
        line
        for cell in cells
        for line in _lines(
            cell,
            [done[cell, seed] for seed in range(seeds) if (cell, seed) in done],
            study.tiers[tier].expected,
        )
    ]
    left = tuple(f"{cell}, seed {seed}" for cell, seed in trials if (cell, seed) not in done)
    return Outcome(study.name, tier, seeds, tuple(lines), {}, left)


def _write(path: Path, trial: Trial) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.write(path, msgspec.json.format(msgspec.json.encode(trial), indent=2))


def _path(study: Study, settings: Settings, root: Path) -> Path:
    return root / "studies" / f"{study.name}-{library.run_hash(settings)}.json"


def _lines(
    cell: str, trials: list[Trial], expected: Mapping[str, tuple[Expected, ...]]
) -> list[Line]:
    found = []
    rows = list(trials[0]) if trials else []
    for row in rows:
        label = f"{cell}: {row}"
        wanted = {x.metric: x for x in expected.get(label, ())}
        for metric in trials[0][row]:
            ours = measured([trial[row][metric] for trial in trials])
            aim = wanted.get(metric)
            found.append(Line(label, metric, aim, ours, judge(ours, aim)))
    return found
