"""The books of a round: its row, and what its evaluation showed."""

import math
from typing import Any, NamedTuple

from fedsieve.core.method import AnyMethod, Load
from fedsieve.engines.evaluate import Scores
from fedsieve.engines.site import Failure, Reply
from fedsieve.ledger.bytes import Sent, total
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


class Share(NamedTuple):
    """Share of non-zeros in a tensor, and its size."""

    density: float
    size: int


def load_of(clients: int, messages: list[Sent]) -> Load:
    """What the messages of a round weigh."""
    up, down = total(messages, "up"), total(messages, "down")
    return Load(clients, up.total_bytes, down.total_bytes)


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
    size = sum(share.size for share in shares.values())
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
        density=sum(s.density * s.size for s in shares.values()) / size if size else 1.0,
        values=_means([a.reply.values for a in accepted]),
        global_accuracy=scores.global_accuracy,
        local_accuracy=scores.local_accuracy,
        loss=scores.loss,
        true_discovery=scores.discovery.precision if scores.discovery else None,
        truth_recall=scores.discovery.recall if scores.discovery else None,
    )
    if not scores.client_accuracy:
        return row, None
    layers = {name: share.density for name, share in shares.items()}
    own = [score if math.isfinite(score) else None for score in scores.client_accuracy]
    return row, Evaluation(round=number, client_accuracy=own, layer_density=layers)


def _shares(method: AnyMethod, server: Any, accepted: list[Accepted]) -> dict[str, Share]:
    """Of the maskable tensors of the deployed model; means over the cohort's personal ones."""
    states = [a.reply.state for a in accepted] if method.personal else [()]
    models = [model for s in states if (model := method.deploy(server, s)) is not None]
    return {
        name: Share(
            sum(int(m[name].count_nonzero()) / m[name].numel() for m in models) / len(models),
            models[0][name].numel(),
        )
        for name in (method.task.graph.maskable if models else ())
    }


def _means(values: list[dict[str, float]]) -> dict[str, float]:
    """Means over the clients that report a finite value."""
    names = dict.fromkeys(name for one in values for name in one)
    found = {n: [v[n] for v in values if n in v and math.isfinite(v[n])] for n in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in found.items() if numbers}
