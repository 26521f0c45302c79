"""Small jobs on embedded data that tests share."""

from pathlib import Path
from typing import Any

import torch

import fedsieve
from fedsieve.core.keys import fold
from fedsieve.core.method import registered
from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.executors.inline import Inline
from fedsieve.engine.round_settings import RoundSettings
from fedsieve.engine.rounds import Rounds
from fedsieve.engine.store import open_stores
from fedsieve.jobs.config import make
from fedsieve.jobs.job import Job, build
from fedsieve.jobs.progress import Watcher
from fedsieve.metrics.rows import Row

SETTINGS: dict[str, Any] = {
    "dataset": "digits",
    "model": "mlp(hidden=[12])",
    "partition": "dirichlet(0.5)",
    "clients": 5,
    "cohort": 3,
    "rounds": 4,
    "batch_size": 50,
    "lr": 0.1,
    "seed": 7,
}
METHODS = tuple(registered())
VOLATILE = {"seconds"}


def small_job(**settings: Any) -> Job:
    torch.set_num_threads(1)
    return build(make(SETTINGS | settings))


def rounds_of(job: Job, folder: Path, **plan: Any) -> Rounds:
    """The loop of a job with its states below `folder`."""
    config = job.config
    key = fold(config.seed, "init")
    numbers = {
        "seed": config.seed,
        "rounds": config.rounds,
        "cohort": config.cohort,
        "eval_every": config.eval_every,
        "min_replies": config.min_replies,
    }
    stores = open_stores(folder, lambda client: job.method.init_client(client, key), 10**9)
    runtime = ClientRuntime(job.method, job.federation)
    return Rounds(
        job.method, job.federation, RoundSettings(**numbers | plan), stores, Inline(runtime)
    )


def steady(rows: list[Any]) -> list[dict[str, Any]]:
    """Rows without what differs from run to run of equal jobs."""
    return [{f: getattr(r, f) for f in r.__struct_fields__ if f not in VOLATILE} for r in rows]


def same_in_a_pool(settings: dict[str, Any]) -> None:
    """Fail unless two processes give the bits of one."""
    alone = fedsieve.run(**SETTINGS | settings)
    pooled = fedsieve.run(**SETTINGS | settings, workers=2)
    assert pooled.summary.model_hash == alone.summary.model_hash
    assert steady(pooled.rows) == steady(alone.rows)


class StopAfter(Watcher):
    """Ctrl-C at the end of a round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def finished_round(self, row: Row) -> None:
        if row.round == self.rounds:
            raise KeyboardInterrupt


def same_when_resumed(settings: dict[str, Any], folder: Path) -> None:
    """Fail unless a run stopped after two rounds and resumed gives the bits of a whole one."""
    whole = fedsieve.run(**SETTINGS | settings)
    stopped = fedsieve.run(**SETTINGS | settings, out=folder, watcher=StopAfter(2))
    assert stopped.summary.status == "after round 2 of 4"
    resumed = fedsieve.run(out=folder, resume=True)
    assert resumed.summary.model_hash == whole.summary.model_hash
    assert steady(resumed.rows) == steady(whole.rows)
