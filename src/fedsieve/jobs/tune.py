"""Random search for the settings of a method, scored on held-out training data alone.

Trial t draws the value of setting `name` from the key fold(seed, "tune", t, name): a search is
repeatable, more trials continue it, and methods that share a setting meet the same values of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fedsieve.core.errors import ConfigError, RoundError, unknown
from fedsieve.core.keys import fold
from fedsieve.core.method import method_class
from fedsieve.core.options import in_range
from fedsieve.jobs.config import SETTINGS, make, method_options
from fedsieve.jobs.library import TUNING_FILE, Record
from fedsieve.jobs.search_space import Range, Space, read_space, spelled
from fedsieve.jobs.settings import TUNABLE
from fedsieve.jobs.sweep import LIBRARY, Done, OnDone, Settings, run_all, with_values
from fedsieve.metrics.rows import SCORES

LEAST_VALIDATION = 0.1


Values: TypeAlias = dict[str, float | int | str]


class Trial(msgspec.Struct, frozen=True):
    """One draw and its scores by seed; none: it diverged, which counts as worst."""

    number: int
    values: Values
    score: float | None
    by_seed: list[float | None]
    runs: list[str]  # folders in the library


class Tuning(msgspec.Struct, frozen=True):
    """The whole search for one method; `tuning.json`."""

    method: str
    trials: int
    seed: int
    seeds: list[int]
    trial_seeds: list[int]
    rounds: int
    metric: str
    validation: float
    space: dict[str, str]  # ranges by name
    best: Values
    best_trial: int
    best_score: float
    scores: list[Trial]
    final: list[str]  # folders of the runs on test data


@dataclass(frozen=True)
class Search:
    """What is tried for one method."""

    method: str
    settings: Settings
    space: Space
    metric: str
    trials: int
    seeds: tuple[int, ...]
    rounds: int | None  # of a trial; none: those of the settings
    trial_seeds: tuple[int, ...]

    def draw(self, trial: int) -> Values:
        return {n: how.draw(fold(self.seeds[0], "tune", trial, n)) for n, how in self.space.items()}

    def trial_settings(self, trial: int) -> Settings:
        """A trial's job: whatever the settings say, it never sees test data."""
        config = make(self.settings)
        forced = {
            "score_on": "validation",
            "validation": max(config.validation, LEAST_VALIDATION),
            "rounds": self.rounds or config.rounds,
        }
        return with_values(self.settings, self.draw(trial) | forced)

    def trial_jobs(self) -> list[Settings]:
        return [
            self.trial_settings(trial) | {"seed": seed}
            for trial in range(self.trials)
            for seed in self.trial_seeds
        ]

    def final_jobs(self, best: Values) -> list[Settings]:
        """The settings as given with the best values, scored on test data."""
        job = with_values(self.settings, best | {"score_on": "test"})
        return [job | {"seed": s} for s in self.seeds]


class Tuned(NamedTuple):
    """A search, and where the best setting was run: on test data if asked, else as in its trial."""

    tuning: Tuning
    records: list[Record]


def tune(
    settings: Mapping[str, Any],
    space: Mapping[str, Range | str],
    root: str | Path = LIBRARY,
    *,
    methods: Sequence[str] = (),
    trials: int = 20,
    seeds: int = 1,
    trial_seeds: int | None = None,
    rounds: int | None = None,
    metric: str = "best",
    final: bool = True,
    workers: int = 1,
    on_done: OnDone | None = None,
) -> list[Tuned]:
    """Tune every method with the same number of trials, then run the best on test data.

    ```python
    (best,) = fedsieve.tune({"rounds": 20}, {"lr": "log(0.001,1)", "epochs": "int(1,5)"}, trials=10)
    best.tuning.best, best.records[0].summary.global_accuracy
    ```

    Args:
        settings: the job; its `validation` is raised to 0.1 in trials if it is less.
        space: ranges by name, such as `log(0.001,1)`; a method takes part in those it has.
        root: the library in which trials and final runs are kept and found again.
        methods: the settings' own if none are given.
        trials: random settings for each method.
        seeds: of the job, from its own seed on.
        trial_seeds: of a trial, whose score is their mean; all seeds if not given.
        rounds: of a trial; the settings' own if not given.
        metric: `best` or `last`, a score, or both (`last_local_accuracy`); the score is
            global_accuracy, or local_accuracy for methods with personal models.
        final: run the best setting with the settings as given, scored on test data.
        workers: jobs side by side.
        on_done: called for every job that ends.

    Raises:
        ConfigError: settings, space or metric do not fit.
        RoundError: every trial of a method diverged.
        KeyboardInterrupt: stopped; the same call goes on from there.
    """
    in_range("trials", trials, 1)
    in_range("seeds", seeds, 1)
    scored = seeds if trial_seeds is None else trial_seeds
    in_range("trial_seeds", scored, 1, seeds)
    texts = {n: how if isinstance(how, str) else spelled(how) for n, how in space.items()}
    ranges = read_space([f"{name}={how}" for name, how in texts.items()])
    names = list(dict.fromkeys(methods or [str(settings.get("method", "fedavg"))]))
    searches = []
    for name in names:
        base, part = _of_method(settings, ranges, name, names)
        first = make(base).seed
        numbers = tuple(range(first, first + seeds))
        chosen = read_metric(metric, name)
        searches.append(Search(name, base, part, chosen, trials, numbers, rounds, numbers[:scored]))
    jobs = [job for search in searches for job in search.trial_jobs()]
    each = trials * scored
    ended = _whole(run_all(jobs, Path(root), workers=workers, on_done=on_done))
    tunings = [_judge(s, ended[i * each : (i + 1) * each]) for i, s in enumerate(searches)]
    if final:
        best = zip(searches, tunings, strict=True)
        jobs = [job for search, tuned in best for job in search.final_jobs(tuned.tuning.best)]
        runs = [
            _record(d) for d in _whole(run_all(jobs, Path(root), workers=workers, on_done=on_done))
        ]
        tunings = [_final(t, runs[i * seeds : (i + 1) * seeds]) for i, t in enumerate(tunings)]
    for tuning, records in tunings:
        text = msgspec.json.format(msgspec.json.encode(tuning), indent=1)
        for record in records:
            (record.path / TUNING_FILE).write_bytes(text)
    return tunings


def read_metric(text: str, method: str) -> str:
    """The field of a summary that `best`, `local_accuracy`, `last_global_accuracy` ... stand for.

    Raises:
        ConfigError: it stands for none.
    """
    cls = method_class(method)
    is_personal = cls.personal and cls.partition != "pooled"
    score_field = "local_accuracy" if is_personal else "global_accuracy"
    known = {"best": f"best_{score_field}", "last": score_field}
    for score in SCORES:
        known |= {score: f"best_{score}", f"best_{score}": f"best_{score}", f"last_{score}": score}
    if text not in known:
        raise ConfigError(unknown("metric", text, known))
    return known[text]


def _of_method(
    settings: Mapping[str, Any], space: Mapping[str, Range], method: str, methods: Sequence[str]
) -> tuple[Settings, Space]:
    """Settings and space without options that only others of the methods have."""
    options = set(method_options(method_class(method)))
    named = [*methods, str(settings.get("method", "fedavg"))]
    others = {n for m in named for n in method_options(method_class(m))} - options
    base = with_values(settings, {"method": method})
    base["options"] = {n: v for n, v in base["options"].items() if n not in others}
    rivals = {n for m in methods for n in method_options(method_class(m))}
    for name in space:
        if name not in SETTINGS and name not in rivals:
            what, known = f"setting or {method} option", {*TUNABLE, *options}
            raise ConfigError(f"--space {name}: {unknown(what, name, known)}")
    part = {n: how for n, how in space.items() if n in options or n in SETTINGS}
    if not part:
        raise ConfigError(f"{method} has none of {', '.join(space)}: nothing to tune.")
    return base, part


def _judge(search: Search, ended: Sequence[Done]) -> Tuned:
    count = len(search.trial_seeds)
    scores = []
    for trial in range(search.trials):
        jobs = ended[trial * count : (trial + 1) * count]
        by_seed = [getattr(d.record.summary, search.metric) if d.record else None for d in jobs]
        known = [score for score in by_seed if score is not None]
        score = sum(known) / count if len(known) == count else None
        runs = [d.record.path.name for d in jobs if d.record]
        scores.append(Trial(trial, search.draw(trial), score, by_seed, runs))
    best = max(scores, key=lambda trial: -math.inf if trial.score is None else trial.score)
    if best.score is None:
        raise RoundError(
            f"tune: no trial of {search.method} has a {search.metric}, {search.trials} tried"
            f"{': ' + ended[0].error if ended[0].error else ''}. Change the space (a smaller lr, "
            "say) or the metric."
        )
    tried = make(search.trial_settings(best.number))
    tuning = Tuning(
        method=search.method,
        trials=search.trials,
        seed=search.seeds[0],
        seeds=list(search.seeds),
        trial_seeds=list(search.trial_seeds),
        rounds=tried.rounds,
        metric=search.metric,
        validation=tried.validation,
        space={n: spelled(how) for n, how in search.space.items()},
        best=best.values,
        best_trial=best.number,
        best_score=best.score,
        scores=scores,
        final=[],
    )
    return Tuned(tuning, [d.record for d in ended[best.number * count :][:count] if d.record])


def _final(tuned: Tuned, records: list[Record]) -> Tuned:
    names = [record.path.name for record in records]
    return Tuned(msgspec.structs.replace(tuned.tuning, final=names), records)


def _whole(ended: list[Done]) -> list[Done]:
    """The same jobs, if none was stopped."""
    if any(done.state == "stopped" for done in ended):
        raise KeyboardInterrupt
    for done in ended:
        if done.state == "failed":
            raise ConfigError(f"tune: a job of {done.settings['method']} failed: {done.error}")
    return ended


def _record(done: Done) -> Record:
    if done.record is None:
        raise RoundError(f"tune: the best setting diverged in its final run: {done.error}")
    return done.record
