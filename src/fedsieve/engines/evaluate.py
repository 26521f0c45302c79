"""Evaluation: the global model on the union of test shards, personal ones each on its own."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.errors import RoundError
from fedsieve.core.graph import LayerGraph
from fedsieve.core.message import Params
from fedsieve.core.method import AnyMethod
from fedsieve.data.federation import Federation
from fedsieve.engines.site import Evaluate, Executor, Tallies
from fedsieve.engines.store import ClientStore


class Discovery(NamedTuple):
    """How the support of a linear model compares with a planted truth."""

    precision: float
    recall: float


class Scores(NamedTuple):
    """`global_accuracy` is None where a method has no global model."""

    global_accuracy: float | None
    local_accuracy: float | None
    loss: float | None
    client_accuracy: list[float] = []  # noqa: RUF012 - never changed
    discovery: Discovery | None = None


def evaluate(
    method: AnyMethod, server: Any, store: ClientStore, federation: Federation, execute: Executor
) -> Scores:
    """Scores of what the method would deploy now.

    local_accuracy is the unweighted mean over test shards of the client's own model, or of the
    global one where clients have none of their own. The model of pooled data is the global one.
    """
    task = method.task
    shards = range(federation.num_shards)
    is_pooled = federation.is_pooled
    model = method.deploy(server, store.get(0) if is_pooled else ())
    common: Tensor | None = None
    if model is not None:
        pieces = [tuple(shards[i::_PIECES]) for i in range(_PIECES)]
        common = _tallies([Evaluate(model, piece) for piece in pieces if piece], execute)
    own = common
    if method.personal and not is_pooled:
        # One at a time: thousands of personal models need not be in memory together.
        personal = ((method.deploy(server, store.get(shard)), shard) for shard in shards)
        own = _tallies((Evaluate(m, (shard,)) for m, shard in personal if m is not None), execute)
    if own is None:
        return Scores(None, None, None)
    whole = (own if common is None else common).sum(0)
    own_scores = [task.score(tally) for tally in own]
    return Scores(
        global_accuracy=None if common is None else task.score(whole),
        local_accuracy=sum(own_scores) / len(own_scores),
        loss=task.mean_loss(whole),
        client_accuracy=own_scores,
        discovery=None if model is None else discovery(model, task.graph, federation.dataset.truth),
    )


def discovery(model: Params, graph: LayerGraph, truth: Tensor | None) -> Discovery | None:
    """Precision (true discovery rate) and recall of the support; None where they mean nothing.

    They need a truth and a model that is one linear map of the same shape. A model without a single
    weight has made no discovery.
    """
    if truth is None or len(graph.maskable) != 1:
        return None
    weight = model[graph.maskable[0]]
    if weight.shape != truth.T.shape:
        return None
    found, planted = weight != 0, truth.T != 0
    common = int((found & planted).count_nonzero())
    return Discovery(
        common / max(int(found.count_nonzero()), 1), common / int(planted.count_nonzero())
    )


_PIECES = 8  # enough to keep a few workers busy to the end


def _tallies(requests: Iterable[Evaluate], execute: Executor) -> Tensor:
    found: dict[int, Tensor] = {}
    for response in execute(requests):
        if not isinstance(response, Tallies):
            raise RoundError(f"evaluation of shard {response[0]} failed: {response[1:]}")
        found |= dict(zip(response.shards, response.tallies, strict=True))
    return torch.stack([found[shard] for shard in sorted(found)])
