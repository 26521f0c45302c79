"""Evaluation: the global model on the union of test shards, personal ones each on its own.

Personal models are made where the states are: in this process, or with the data's owners.
"""

import logging
from collections.abc import Iterable
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.errors import RoundError
from fedsieve.core.graph import LayerGraph
from fedsieve.core.message import Params, count_nonzero
from fedsieve.core.method import AnyMethod, Task
from fedsieve.data.federation import Federation
from fedsieve.engine.client import shares_of
from fedsieve.engine.requests import (
    Evaluate,
    EvaluateOwn,
    Executor,
    Failure,
    Request,
    Response,
    Share,
    Tallies,
)
from fedsieve.engine.store import ClientStore
from fedsieve.metrics.macs import Size, size
from fedsieve.sparsity.compaction import smallest

log = logging.getLogger("fedsieve")
Shares = dict[str, Share]


class Discovery(NamedTuple):
    """How the support of a linear model compares with a planted truth."""

    precision: float
    recall: float


class Scores(NamedTuple):
    """`global_accuracy` is None where a method has no global model; densities are of own ones."""

    global_accuracy: float | None
    local_accuracy: float | None
    loss: float | None
    seen_accuracy: float | None = None
    client_accuracy: list[float] = []  # noqa: RUF012 - never changed; nan: no model, or no answer
    shares: dict[int, Shares] = {}  # noqa: RUF012 - the same; of personal models, by client
    deployed: Size | None = None  # of the global model when it is cut
    discovery: Discovery | None = None  # of the global model


class _Results(NamedTuple):
    tallies: dict[int, Tensor]  # by shard
    shares: dict[int, Shares]  # by client
    failures: list[Response]


def evaluate(
    method: AnyMethod,
    server: Any,
    store: ClientStore,
    federation: Federation,
    execute: Executor,
    seen: frozenset[int] = frozenset(),
) -> Scores:
    """Evaluate the models that the method has now.

    local_accuracy is the unweighted mean over test shards of the client's own model, or of the
    global one where clients have none of their own; seen_accuracy that over the clients in `seen`,
    who have trained. The model of pooled data is the global one. A shard that could not be scored,
    or whose score is not defined (R2 of a single value, F1 without a label), counts nowhere; its
    accuracy is NaN. A loss that is not finite is none.

    Raises:
        RoundError: no shard could be scored.
    """
    task, model = method.task, method.model(server, ())
    shards = range(federation.num_shards)
    common = personal = _Results({}, {}, [])
    if federation.partition.is_pooled:
        everything = EvaluateOwn(0, server, store.get(0), tuple(shards))
        common = personal = _ask([everything], execute, task)
    else:
        if model is not None:
            pieces = [tuple(shards[i::_PIECES]) for i in range(_PIECES)]
            asked = [Evaluate(model, piece) for piece in pieces if piece]
            common = personal = _ask(asked, execute, task)
        if method.personal:
            # One at a time: thousands of personal models need not be in memory together.
            each = (EvaluateOwn(c, server, store.get(c), (c,)) for c in shards)
            personal = _ask(each, execute, task)
    if personal.failures and not personal.tallies:
        raise RoundError(
            f"evaluation of shard {personal.failures[0][0]} failed: {personal.failures[0][1:]}"
        )
    if not personal.tallies:
        return Scores(None, None, None, shares=personal.shares)
    whole = torch.stack(list((common.tallies or personal.tallies).values())).sum(0)
    scores = {
        shard: s for shard, tally in personal.tallies.items() if isfinite(s := task.score(tally))
    }
    overall = task.score(whole)
    trained = [score for shard, score in scores.items() if shard in seen]
    return Scores(
        global_accuracy=overall if common.tallies and isfinite(overall) else None,
        local_accuracy=sum(scores.values()) / len(scores) if scores else None,
        loss=loss if isfinite(loss := task.mean_loss(whole)) else None,
        seen_accuracy=fmean(trained) if trained and method.personal else None,
        client_accuracy=[scores.get(shard, float("nan")) for shard in shards],
        shares=personal.shares,
        deployed=_deployed(task, model),
        discovery=discovery(model, task.graph, federation.dataset.truth),
    )


def discovery(model: Params | None, graph: LayerGraph, truth: Tensor | None) -> Discovery | None:
    """Precision (true discovery rate) and recall of the support; None where they mean nothing.

    They need a truth and a model that is one linear map of the same shape. A model without a single
    weight has made no discovery.
    """
    if model is None or truth is None or len(graph.maskable) != 1:
        return None
    weight = model[graph.maskable[0]]
    if weight.shape != truth.T.shape:
        return None
    support, planted = weight != 0, truth.T != 0
    common = count_nonzero(support & planted)
    return Discovery(common / max(count_nonzero(support), 1), common / count_nonzero(planted))


def shares_of_cohort(
    method: AnyMethod,
    server: Any,
    states: dict[int, Any],
    scores: Scores,
    execute: Executor,
) -> list[Shares]:
    """Shares of non-zeros of the global model; without one, of each of the cohort's own models."""
    model = method.model(server, ())
    if model is not None or not method.personal:
        return [] if model is None else [shares_of(model, method.task.graph.maskable)]
    missing = [client for client in states if client not in scores.shares]
    asked = (EvaluateOwn(c, server, states[c], ()) for c in missing)
    known = scores.shares | _ask(asked, execute, method.task).shares
    return [known[client] for client in states if known.get(client)]


def _deployed(task: Task, model: Params | None) -> Size | None:
    """The size of the global model when it is cut; None for an ensemble."""
    if model is None or any(model[x.weight].dim() != len(x.shape) for x in task.graph.layers):
        return None
    return size(task.graph, smallest(task, model))


_PIECES = 8  # enough to keep a few workers busy to the end


def _ask(requests: Iterable[Request], execute: Executor, task: Task) -> _Results:
    results = _Results({}, {}, [])
    for given in execute(requests):
        response = _fitting(given, task)
        if not isinstance(response, Tallies):
            results.failures.append(response)
            log.warning("client %d is not evaluated: %s", *response[:2])
            continue
        if response.client >= 0:
            results.shares[response.client] = response.shares
        for shard, tally in zip(response.shards, response.tallies, strict=True):
            results.tallies[shard] = tally
    # Sums must not depend on who has answered first.
    tallies, shares = sorted(results.tallies.items()), sorted(results.shares.items())
    return _Results(dict(tallies), dict(shares), results.failures)


def _fitting(response: Response, task: Task) -> Response:
    """The response, or a failure if its tallies or shares are none of this task."""
    if not isinstance(response, Tallies):
        return response
    shards, tallies, client, shares = response
    rows = (len(shards), task.sums) if shards else (0,)
    if tallies.shape == rows and shares.keys() in (set(), set(task.graph.maskable)):
        return response
    who = shards[0] if shards and client < 0 else client
    return Failure(who, "its figures do not fit the model")
