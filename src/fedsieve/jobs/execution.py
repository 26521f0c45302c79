"""From a job to its round loop: stores, runtime, executor and plan put together."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.options import read
from fedsieve.data.sources.registry import is_remote
from fedsieve.engine.client import ClientRuntime, Wire, keeps_change
from fedsieve.engine.executors.cores import busy
from fedsieve.engine.executors.inline import Inline
from fedsieve.engine.executors.pool import Pool
from fedsieve.engine.requests import Executor
from fedsieve.engine.round_settings import RoundSettings
from fedsieve.engine.rounds import Rounds
from fedsieve.engine.store import Receipt, Stores, open_stores
from fedsieve.jobs.config import Config
from fedsieve.jobs.job import Job
from fedsieve.robust.aggregation import AGGREGATIONS
from fedsieve.robust.updates import read_clip
from fedsieve.wire.compressors import KINDS, NAMED, Compression
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.compressors.uniform import Uniform
from fedsieve.wire.feedback import read_feedback


class Engine(NamedTuple):
    """The executor of client requests, and the stores of client states."""

    stores: Stores
    execute: Executor


OpenEngine: TypeAlias = Callable[[Job, Path], AbstractContextManager[Engine]]


@contextmanager
def local_engine(job: Job, folder: Path) -> Iterator[Engine]:
    """All clients on this machine, their states below `folder`."""
    config = job.config
    if is_remote(config.dataset):
        raise ConfigError(
            f"dataset={config.dataset!r}: there is no data here to train on. `fedsieve deploy` "
            "runs it on the nodes that have some; name another data set for a run on this machine."
        )
    init_key = fold(config.seed, "init")
    stores = open_stores(
        folder, lambda c: job.method.init_client(c, init_key), config.state_ram_mb * 10**6
    )
    runtime = ClientRuntime(job.method, job.federation, client_wire(config), config.seed)
    kind = stores.states.kind
    workers = busy(config.workers, config.cohort or 1)
    executor = Inline(runtime) if workers == 1 else Pool(runtime, workers, kind)
    try:
        yield Engine(stores, executor)
    finally:
        executor.close()


def compression(config: Config, direction: Literal["up", "down"]) -> Compression:
    """How values travel in a direction."""
    text = config.up if direction == "up" else config.down
    if config.round_bytes is not None and text is None:
        return Uniform() if direction == "up" else Lattice()
    if direction == "up" and text is not None and text.startswith("lattice"):
        raise ConfigError("up=lattice: it is for broadcasts. Clients send `uniform` steps.")
    return NAMED[config.wire] if text is None else read(text, KINDS, direction)


def client_wire(config: Config) -> Wire:
    """How clients send."""
    return Wire(
        compression(config, "up"),
        config.up is not None or config.round_bytes is not None,
        read_feedback(config.error_feedback),
        compression(config, "down"),
    )


@contextmanager
def open_rounds(
    job: Job,
    folder: Path,
    on_reply: Callable[[int, int], None] | None = None,
    open_engine: OpenEngine = local_engine,
    **changes: Any,
) -> Iterator[Rounds]:
    """The loop of a job with its states below `folder`; `changes` are fields of RoundSettings."""
    config, clip = job.config, job.config.clip_update
    plan = RoundSettings(
        seed=config.seed,
        rounds=config.rounds,
        cohort=config.cohort or 1,
        eval_every=config.eval_every,
        min_replies=config.min_replies,
        aggregation=read(config.aggregation, AGGREGATIONS, "aggregation"),
        clip_update=None if clip is None else read_clip(clip),
        max_examples=config.max_examples,
        up=compression(config, "up"),
        down=compression(config, "down"),
        round_bytes=config.round_bytes,
        keeps_changes=keeps_change(client_wire(config)),
        kept_rounds=frozenset(config.save_messages),
    )
    with open_engine(job, folder) as (stores, execute):
        is_here = stores.states.kind is not Receipt  # else data and states are with the nodes
        plan = replace(plan, holds_data=is_here, **changes)
        yield Rounds(job.method, job.federation, plan, stores, execute, on_reply)
