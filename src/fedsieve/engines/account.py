"""The books of a round: its row, and what its evaluation showed."""

import math
from statistics import fmean
from typing import Any, NamedTuple

from fedsieve.core.method import AnyMethod
from fedsieve.engines.evaluate import Scores
from fedsieve.engines.site import Failure, Reply
from fedsieve.ledger.bytes import Sent, total
from fedsieve.ledger.flops import layer_density, mean_density, overall
from fedsieve.ledger.rows import Evaluation, Row


class Accepted(NamedTuple):
    """A reply whose message could be read."""

    reply: Reply
    up: Any


class Exchange(NamedTuple):
    """What a round's cohort gave back."""

    accepted: list[Accepted]
    failures: list[Failure]
    messages: list[Sent]


def account(
    method: AnyMethod,
    server: Any,
    exchange: Exchange,
    scores: Scores,
    number: int,
    seconds: float,
) -> tuple[Row, Evaluation | None]:
    """The row of round `number`, and the evaluation where there was one."""
    accepted, failures, messages = exchange
    up, down = total(messages, "up"), total(messages, "down")
    flops = [a.reply.flops for a in accepted]
    shares = _shares(method, server, accepted)
    layers = scores.layer_density or shares
    is_scored, own = bool(scores.client_accuracy), scores.client_density
    row = Row(
        round=number,
        seconds=seconds,
        clients=len(accepted),
        failed=len(failures),
        up_bytes=up.total_bytes,
        down_bytes=down.total_bytes,
        up_paper_bytes=up.paper_bytes,
        down_paper_bytes=down.paper_bytes,
        flops_dense=sum(f.dense for f in flops),
        flops_ideal=sum(f.ideal for f in flops),
        flops_realisable=sum(f.realisable for f in flops),
        density=overall(shares, method.task.graph),
        values=_means([a.reply.values for a in accepted]),
        global_accuracy=scores.global_accuracy,
        local_accuracy=scores.local_accuracy,
        seen_accuracy=scores.seen_accuracy,
        local_density=fmean(own) if own else None,
        layer_mean_density=fmean(layers.values()) if is_scored and layers else None,
        loss=scores.loss,
    )
    if not is_scored:
        return row, None
    return row, Evaluation(
        round=number,
        client_accuracy=[x if math.isfinite(x) else None for x in scores.client_accuracy],
        layer_density=layers,
        client_density=own,
    )


def _shares(method: AnyMethod, server: Any, accepted: list[Accepted]) -> dict[str, float]:
    """Of the maskable tensors of the deployed model; means over the cohort's personal ones."""
    states = [a.reply.state for a in accepted] if method.personal else [()]
    models = [model for s in states if (model := method.deploy(server, s)) is not None]
    return mean_density([layer_density(model, method.task.graph) for model in models])


def _means(values: list[dict[str, float]]) -> dict[str, float]:
    """Means over the clients that report a finite value."""
    names = dict.fromkeys(name for one in values for name in one)
    found = {n: [v[n] for v in values if n in v and math.isfinite(v[n])] for n in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in found.items() if numbers}
