"""`fedsieve.run(...)`: build a job from names or objects, run it, return what the folder holds."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedsieve.core.errors import ConfigError, ResumeError
from fedsieve.core.method import in_run, method_class
from fedsieve.data.dataset import Dataset
from fedsieve.engine.interrupt import Interrupt
from fedsieve.engine.manifest import check_finished
from fedsieve.engine.rounds import RoundResult
from fedsieve.engine.run_folder import RunFolder
from fedsieve.jobs import config as configuration
from fedsieve.jobs.config import expanded, make, to_toml
from fedsieve.jobs.execution import OpenEngine, local_engine, open_rounds
from fedsieve.jobs.job import Job, build, canonical
from fedsieve.jobs.progress import Watcher as Watcher  # noqa: PLC0414 - `fedsieve.jobs.api.Watcher` is public
from fedsieve.jobs.progress import view
from fedsieve.jobs.result import Result, global_model, summarise
from fedsieve.jobs.settings import RESUMABLE
from fedsieve.metrics.rows import Row
from fedsieve.sparsity import masks

REPLAYABLE = {"dataset", "data_root", "workers"}


def run(
    *,
    out: str | Path | None = None,
    resume: bool = False,
    replay: str | Path | None = None,
    dataset: str | Dataset | None = None,
    model: str | nn.Module | Callable[[], nn.Module] = "auto",
    watcher: Watcher | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Run a federated job.

    ```python
    result = fedsieve.run(method="fediter_ht", rounds=20, out="runs/first")
    result.summary.global_accuracy, result.summary.up_bytes
    ```

    Args:
        out: run folder; without one nothing is kept on disk.
        resume: continue the run in `out` (or start it, when it has no checkpoint yet).
        replay: a run folder whose rounds are played again on this machine, with its settings and
            with the same clients failing or late; only the data set may be named anew.
        dataset: a name (`fedsieve datasets`), `digits` if there is none, or a Dataset of your own.
        model: a name (`fedsieve models`), a module, or a function that makes one.
        watcher: follows the run, in place of what `progress` would show.
        progress: show how far the run is: a live bar on a terminal and in a notebook, elsewhere
            one line for every evaluated round. Unless it is asked for there are no such lines.
        settings: any setting of `Config` or option of the method.

    Raises:
        FedsieveError: bad settings, data or models; a folder that cannot be continued; too few
            usable replies.
    """
    named: dict[str, Any] = dict(settings)
    if dataset is not None:
        named["dataset"] = dataset if isinstance(dataset, str) else f"object:{dataset.name}"
    named["model"] = model if isinstance(model, str) else f"object:{_model_name(model)}"
    folder = None if out is None else RunFolder(Path(out))
    if replay is not None:
        changed = {n: v for n, v in named.items() if v is not None and v != "auto"}
        if resume or not changed.keys() <= REPLAYABLE:
            raise ConfigError(
                f"--replay plays a run with its own settings: leave out --resume and all but "
                f"{', '.join(sorted(REPLAYABLE))} (and --out)."
            )
        given = dataset if isinstance(dataset, Dataset) else None
        with view(is_wanted=progress) if watcher is None else nullcontext(watcher) as shown:
            return _replayed(Path(replay), folder, shown, changed, given)
    if resume:
        named = settings_of(folder, named)
    config = make(named)
    with one_thread():
        job = build(
            config,
            dataset if isinstance(dataset, Dataset) else None,
            None if isinstance(model, str) else model,
        )
        with view(is_wanted=progress) if watcher is None else nullcontext(watcher) as shown:
            return play(job, folder, resume=resume, watcher=shown)


def play(
    job: Job,
    folder: RunFolder | None,
    *,
    resume: bool,
    watcher: Watcher,
    open_engine: OpenEngine = local_engine,
    **changes: Any,
) -> Result:
    """Run a built job to its end, an interrupt, or an error; keeps all finished rounds.

    Clients work where `open_engine` says, by default on this machine; `changes` are fields of
    RoundSettings.
    """
    config = job.config
    with ExitStack() as stack:
        if folder:
            stack.enter_context(folder.opened(to_toml(config), resume=resume))
        clients = (
            folder.clients
            if folder
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsieve-")))
        )
        rounds = stack.enter_context(
            open_rounds(job, clients, watcher.replied, open_engine, **changes)
        )
        stores = rounds.stores
        position, rows = rounds.start(), list[Row]()
        if folder and resume:
            loaded, rows = folder.load(type(position.server), stores, RESUMABLE)
            position = loaded or position
        watcher.started(config, rows)
        status = "finished"
        try:
            with Interrupt() as interrupt:
                for played in rounds.play(position):
                    if folder:
                        folder.records.append(played)
                        _keep_support(job, played, folder)
                    position = played.position
                    rows.append(played.row)
                    if folder and position.done % config.checkpoint_every == 0:
                        folder.save(position, stores)
                    watcher.finished_round(played.row)
                    if interrupt.is_asked:
                        break
        except KeyboardInterrupt:
            pass
        finally:
            if position.done < config.rounds:
                status = f"after round {position.done} of {config.rounds}"
            model = global_model(job, position, stores.states)
            summary = summarise(job, position, stores.states, rows, status)
            if folder:
                folder.save(position, stores)
                folder.finish(summary, model)
    return Result(summary, rows, model, config, folder.path if folder else None)


def _replayed(
    path: Path,
    folder: RunFolder | None,
    watcher: Watcher,
    changed: dict[str, Any],
    dataset: Dataset | None,
) -> Result:
    record = RunFolder(path)
    if not record.is_begun:
        raise ResumeError(f"{path}: not a run folder, there is no config.toml in it.")
    record.check_config()
    check_finished(path, ("rounds.jsonl",))
    rows = {row.round: row for row in record.records.rows()}
    config = make(configuration.read_toml(path / "config.toml") | changed)
    with one_thread():
        job = build(replace(config, rounds=len(rows) or config.rounds), dataset)
        return play(job, folder, resume=False, watcher=watcher, record=rows)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: parallelism is by clients, and results must not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _keep_support(job: Job, played: RoundResult, folder: RunFolder) -> None:
    server = played.position.server
    model = job.method.model(server, ())
    if played.evaluation is not None and model is not None and played.row.density < 1:
        support = masks.nonzero(model, job.method.task.graph.maskable)
        folder.records.keep_support(played.row.round, job.method.report(server).gates or support)


def settings_of(folder: RunFolder | None, named: dict[str, Any]) -> dict[str, Any]:
    """The stored configuration; only what cannot change results may be given anew."""
    if folder is None:
        raise ResumeError("--resume needs the run folder: give --out DIR.")
    if not folder.is_begun:
        return named
    folder.check_config()
    stored = configuration.read_toml(folder.path / "config.toml")
    before = canonical(make(stored))
    given = {n: v for n, v in named.items() if v is not None and v != "auto"}
    options = given.pop("options", {}) | {
        n: given.pop(n) for n in list(given) if n not in configuration.SETTINGS
    }
    options = expanded(method_class(str(given.get("method", before.method))), options)
    for name, most in (("cohort", before.clients), ("min_replies", before.cohort)):
        if isinstance(given.get(name), int) and most is not None:
            given[name] = min(given[name], most)  # as when the run was built
    asked = stored | given | {"options": stored.get("options", {}) | options}
    merged = canonical(make(asked))
    changed = [
        n
        for n in configuration.SETTINGS
        if n not in RESUMABLE and getattr(merged, n) != getattr(before, n)
    ]
    changed += [
        n
        for n, v in merged.options.items()
        if in_run(v, before.rounds) != before.options.get(n)  # as when the run was built
    ]
    if changed:
        raise ResumeError(
            f"{folder.path} was started with other values of {', '.join(changed)}. "
            f"Only {', '.join(sorted(RESUMABLE))} may change; use a new --out for a new run."
        )
    return stored | {n: v for n, v in given.items() if n in RESUMABLE}


def _model_name(model: nn.Module | Callable[[], nn.Module]) -> str:
    return getattr(model, "__name__", type(model).__name__)
