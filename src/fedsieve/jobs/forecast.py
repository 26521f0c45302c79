"""What a run will cost, from its own first rounds: bytes, MACs, memory and time."""

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.options import construct
from fedsieve.data.dataset import Dataset
from fedsieve.engine.evaluate import evaluate
from fedsieve.engine.rounds import RoundResult
from fedsieve.jobs import api
from fedsieve.jobs.config import make
from fedsieve.jobs.execution import open_rounds
from fedsieve.jobs.job import Job, build
from fedsieve.jobs.settings import Config
from fedsieve.metrics.rows import Row
from fedsieve.wire.inspect import inspect
from fedsieve.wire.schema import BOOLEAN

PROBED = 5
SHORT_ROUNDS = 20  # rounds of the shorter run
FALL = 0.02  # of density, below which it is that of weights rounded to 0
IN_ROUNDS = ("ramp", "warmup")  # options that are counted in rounds
NEVER = 10**9


@dataclass(frozen=True)
class Direction:
    """Bytes of a round in one direction: true, by the paper's formula, and the limit.

    `announced_bytes` is what a client's first message takes on top.
    """

    true_bytes: int
    paper_bytes: int
    limit_bytes: int
    announced_bytes: int


@dataclass(frozen=True)
class Forecast:
    """Figures of a round are those of the last one probed; totals and `density` of the run."""

    rounds: int
    up: Direction
    down: Direction
    total_bytes: int
    total_paper_bytes: int
    total_macs: int
    round_seconds: float
    evaluation_seconds: float
    total_seconds: float
    server_memory_bytes: int  # its state and a cohort's messages, as sent and as read
    client_memory_bytes: int  # weights, working copy, gradient, moments and one mini-batch
    client_state_bytes: int  # kept for each client between rounds
    density: float


def plan(
    *,
    dataset: str | Dataset | None = None,
    model: str | nn.Module | Callable[[], nn.Module] = "auto",
    **settings: Any,
) -> Forecast:
    """What `fedsieve.run` with these settings will cost, measured in its first rounds.

    ```python
    cost = fedsieve.plan(method="flops_pa", dataset="mnist", rounds=200)
    cost.total_bytes / 1e6, cost.total_seconds / 60
    ```

    Raises:
        FedsieveError: bad settings, data or models.
    """
    named = settings | {
        "dataset": dataset if isinstance(dataset, str | None) else f"object:{dataset.name}",
        "model": model if isinstance(model, str) else "object:model",
    }
    with api.one_thread():
        asked = make({n: v for n, v in named.items() if v is not None})
        job = build(
            asked,
            dataset if isinstance(dataset, Dataset) else None,
            None if isinstance(model, str) else model,
        )
        return forecast(asked, job)


def forecast(asked: Config, job: Job) -> Forecast:
    """Run the first rounds of a job in a temporary folder and extrapolate from the last.

    Where density falls over the run, bytes are those of `asked` in fewer and shorter rounds.
    """
    config = job.config
    probed = min(PROBED, config.rounds)
    with (
        tempfile.TemporaryDirectory(prefix="fedsieve-") as folder,
        open_rounds(
            job, Path(folder), eval_every=NEVER, rounds=NEVER, kept_rounds=frozenset({1, probed})
        ) as rounds,
    ):
        played = list(islice(rounds.play(rounds.start()), probed))
        last = played[-1]
        states = rounds.stores.states
        started = time.perf_counter()
        evaluate(job.method, last.position.server, states, job.federation, rounds.execute)
        evaluation = time.perf_counter() - started
        state_bytes = tree.size_bytes(states.get(last.messages[0].client))
    rows = [p.row for p in played]
    up, down = _direction(played, "up"), _direction(played, "down")
    seconds = sum(row.seconds for row in rows) / probed
    evaluations = -(-config.rounds // config.eval_every)
    sample = (config.rounds > probed and _short_run(asked, job, rows[0])) or ShortRun(
        up.true_bytes + down.true_bytes, up.paper_bytes + down.paper_bytes, last.row.density
    )
    return Forecast(
        rounds=config.rounds,
        up=up,
        down=down,
        total_bytes=round(config.rounds * sample.true_bytes)
        + round(_distinct_clients(job) * (up.announced_bytes + down.announced_bytes)),
        total_paper_bytes=round(config.rounds * sample.paper_bytes),
        total_macs=sum(row.macs_dense for row in rows) * config.rounds // probed,
        round_seconds=seconds,
        evaluation_seconds=evaluation,
        total_seconds=seconds * config.rounds + evaluation * evaluations,
        server_memory_bytes=tree.size_bytes(last.position.server)
        + last.row.up_bytes
        + _decoded_bytes(last),
        client_memory_bytes=_client_memory(job),
        client_state_bytes=state_bytes,
        density=sample.density,
    )


class ShortRun(NamedTuple):
    """Mean bytes of a round and final density of a run, measured in a shortened one."""

    true_bytes: float
    paper_bytes: float
    density: float


def _short_run(asked: Config, job: Job, first: Row) -> ShortRun | None:
    """Run the job shortened to a few rounds of one step; None if its density does not change.

    What depends on the length of a run shrinks with it, so that messages are those of a sample of
    the run's rounds, each by as much larger as the `first` one is when really played.
    """
    rounds = min(asked.rounds, SHORT_ROUNDS)
    cls, task = type(job.method), job.method.task
    options = {
        n: max(round(v * rounds / asked.rounds), 1) if n in IN_ROUNDS and v else v
        for n, v in asked.options.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a ramp of so many rounds is not meant for these
        method = construct(cls, options, asked.method, task=task).in_run(rounds)
    short = replace(
        job,
        method=method,
        config=replace(job.config, rounds=rounds),
        federation=replace(job.federation, steps=1),
    )
    with (
        tempfile.TemporaryDirectory(prefix="fedsieve-") as folder,
        open_rounds(short, Path(folder), eval_every=NEVER) as opened,
    ):
        rows = [played.row for played in opened.play(opened.start())]
    if rows[0].density - rows[-1].density < FALL:
        return None
    scale = first.sent_bytes / rows[0].sent_bytes
    return ShortRun(
        scale * sum(row.sent_bytes for row in rows) / rounds,
        sum(row.paper_bytes for row in rows) / rounds,
        rows[-1].density,
    )


def _decoded_bytes(played: RoundResult) -> int:
    """What a cohort's replies take once they are read: places that were not sent are 0."""
    lines = [x for f in played.frames if f.direction == "up" for x in inspect(f).lines]
    return sum(line.size * (1 if line.role in BOOLEAN else 4) for line in lines)


def _direction(played: list[RoundResult], name: Literal["up", "down"]) -> Direction:
    """A steady round: the messages of the last one probed, without schemas, which are sent once."""
    first, last = (
        [inspect(frame) for frame in p.frames if frame.direction == name]
        for p in (played[0], played[-1])
    )
    if not last:
        return Direction(0, 0, 0, 0)
    messages = [m for m in played[-1].messages if m.direction == name]
    steady = sum(x.total_bytes - x.announced_bytes for x in last) / len(last)
    return Direction(
        true_bytes=round(steady * len(messages)),
        paper_bytes=sum(m.paper_bytes for m in messages),
        limit_bytes=round(sum(x.limit_bytes for x in last) / len(last) * len(messages)),
        announced_bytes=max(x.announced_bytes for x in first),
    )


def _distinct_clients(job: Job) -> float:
    """How many clients take part at least once, if cohorts are drawn afresh."""
    clients, cohort = job.federation.num_clients, job.config.cohort or 1
    return clients * (1 - (1 - cohort / clients) ** job.config.rounds)


def _client_memory(job: Job) -> int:
    params = tree.size_bytes(job.method.task.init_params(fold(0, "init")))
    slots = len(getattr(getattr(job.method, "optimiser", None), "slots", ()))
    example = job.dataset.inputs(job.dataset.x[:1])
    return params * (3 + slots) + tree.size_bytes((example,)) * job.config.batch_size
