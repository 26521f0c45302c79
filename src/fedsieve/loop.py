"""From a job to its round loop: stores, site, executor and plan put together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsieve.core.keys import fold
from fedsieve.engines.inline import Inline
from fedsieve.engines.plan import Plan
from fedsieve.engines.pool import Pool
from fedsieve.engines.rounds import Rounds
from fedsieve.engines.site import Site, Wire
from fedsieve.engines.store import open_stores
from fedsieve.job import Job


@contextmanager
def open_rounds(
    job: Job, folder: Path, on_reply: Callable[[int, int], None] | None = None, **changes: Any
) -> Iterator[Rounds]:
    """The loop of a job with its client states below `folder`; `changes` are fields of Plan."""
    config = job.config
    init_key = fold(config.seed, "init")
    stores = open_stores(
        folder, lambda c: job.method.init_client(c, init_key), config.state_ram_mb * 10**6
    )
    site = Site(job.method, job.federation, Wire(config.wire, config.error_feedback))
    plan = Plan(
        seed=config.seed,
        rounds=config.rounds,
        cohort=config.cohort or 1,
        eval_every=config.eval_every,
        min_replies=config.min_replies,
        precision=config.wire,
        kept_rounds=frozenset(config.save_messages),
    )
    kind = stores.states.kind
    executor = Inline(site) if config.workers == 1 else Pool(site, config.workers, kind)
    try:
        yield Rounds(
            job.method, job.federation, replace(plan, **changes), stores, executor, on_reply
        )
    finally:
        executor.close()
