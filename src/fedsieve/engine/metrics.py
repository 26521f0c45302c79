"""Builds the metrics row of a round, and the record of its evaluation."""

import math
from statistics import fmean
from typing import Any, NamedTuple

from fedsieve.core.method import Load
from fedsieve.engine.evaluate import Scores, Shares
from fedsieve.engine.requests import Failure, Reply, Share
from fedsieve.metrics.bytes import Sent, total
from fedsieve.metrics.rows import Evaluation, Row


class Accepted(NamedTuple):
    """A reply whose message could be read."""

    reply: Reply
    up: Any


class Exchange(NamedTuple):
    """What came back from the clients of a round."""

    accepted: list[Accepted]
    failures: list[Failure]
    messages: list[Sent]
    spare: int = 0  # how many were invited beyond the cohort
    late: list[int] = []  # noqa: RUF012 - never changed; invited, and not waited for


def load_of(clients: int, messages: list[Sent]) -> Load:
    """The bytes of a round's messages, up and down."""
    up, down = total(messages, "up"), total(messages, "down")
    return Load(clients, up.total_bytes, down.total_bytes)


def round_metrics(
    exchange: Exchange,
    scores: Scores,
    models: list[Shares],
    figures: dict[str, float],
    number: int,
    seconds: float,
) -> tuple[Row, Evaluation | None]:
    """Build the row of round `number`, and the evaluation if there was one.

    Args:
        exchange: replies, failures and messages.
        scores: what the evaluation measured; empty if there was none.
        models: densities by layer of the global model, or of the cohort's own.
        figures: the method's own, of the server.
        number: of the round, from 1.
        seconds: wall time.
    """
    accepted, failures, messages, spare, late = exchange
    up, down = total(messages, "up"), total(messages, "down")
    macs = [a.reply.macs for a in accepted]
    shares = _mean_shares(models)
    personal = [shares_of_client for shares_of_client in scores.shares.values() if shares_of_client]
    is_global = scores.global_accuracy is not None
    layers = shares if is_global or not personal else _mean_shares(personal)
    densities = [layer.density for layer in layers.values()]
    is_scored, densities_of_clients = (
        bool(scores.client_accuracy),
        [_overall(shares_of_client) for shares_of_client in personal],
    )
    row = Row(
        round=number,
        seconds=seconds,
        clients=len(accepted),
        failed=len(failures),
        spare=spare,
        lost=sorted(f.client for f in failures),
        late=sorted(late),
        up_bytes=up.total_bytes,
        down_bytes=down.total_bytes,
        up_paper_bytes=up.paper_bytes,
        down_paper_bytes=down.paper_bytes,
        macs_dense=sum(m.dense for m in macs),
        macs_ideal=sum(m.ideal for m in macs),
        macs_realisable=sum(m.realisable for m in macs),
        density=_overall(shares),
        values=_means([a.reply.values for a in accepted]) | _means([figures]),
        global_accuracy=scores.global_accuracy,
        local_accuracy=scores.local_accuracy,
        seen_accuracy=scores.seen_accuracy,
        local_density=fmean(densities_of_clients) if densities_of_clients else None,
        layer_mean_density=fmean(densities) if is_scored and densities else None,
        loss=scores.loss,
        deployed_values=scores.deployed.values if scores.deployed else None,
        deployed_macs=scores.deployed.macs if scores.deployed else None,
        true_discovery=scores.discovery.precision if scores.discovery else None,
        truth_recall=scores.discovery.recall if scores.discovery else None,
    )
    if not is_scored:
        return row, None
    return row, Evaluation(
        round=number,
        client_accuracy=[x if math.isfinite(x) else None for x in scores.client_accuracy],
        layer_density={name: x.density for name, x in layers.items()},
        client_density=densities_of_clients,
    )


def _mean_shares(models: list[Shares]) -> Shares:
    """Layer by layer, the mean over models."""
    return {
        name: Share(sum(m[name].density for m in models) / len(models), models[0][name].size)
        for name in (models[0] if models else ())
    }


def _overall(shares: Shares) -> float:
    """The share in all tensors together."""
    size = sum(share.size for share in shares.values())
    return sum(x.density * x.size for x in shares.values()) / size if size else 1.0


def _means(values: list[dict[str, float]]) -> dict[str, float]:
    """Means over those that report a finite value: JSON has no other."""
    names = dict.fromkeys(name for one in values for name in one)
    numbers_of = {n: [v[n] for v in values if n in v and math.isfinite(v[n])] for n in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in numbers_of.items() if numbers}
