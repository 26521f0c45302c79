"""Evaluation: the global model on the union of test shards, personal ones each on its own."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.errors import RoundError
from fedsieve.core.method import AnyMethod
from fedsieve.data.federation import Federation
from fedsieve.engines.site import Evaluate, Executor, Tallies
from fedsieve.engines.store import ClientStore


class Scores(NamedTuple):
    """`global_accuracy` is None where a method has no global model."""

    global_accuracy: float | None
    local_accuracy: float | None
    loss: float | None
    client_accuracy: list[float] = []  # noqa: RUF012 - never changed; nan: no model yet


def evaluate(
    method: AnyMethod, server: Any, store: ClientStore, federation: Federation, execute: Executor
) -> Scores:
    """Scores of what the method would deploy now.

    local_accuracy is the unweighted mean over test shards of the client's own model, or of the
    global one where clients have none of their own; a client that has no model yet is left out.
    The model of pooled data is the global one.
    """
    task = method.task
    shards = range(federation.num_shards)
    is_pooled = federation.is_pooled
    model = method.deploy(server, store.get(0) if is_pooled else ())
    common: dict[int, Tensor] = {}
    if model is not None:
        pieces = [tuple(shards[i::_PIECES]) for i in range(_PIECES)]
        common = _tallies([Evaluate(model, piece) for piece in pieces if piece], execute)
    own = common
    if method.personal and not is_pooled:
        # One at a time: thousands of personal models need not be in memory together.
        personal = ((method.deploy(server, store.get(shard)), shard) for shard in shards)
        own = _tallies((Evaluate(m, (shard,)) for m, shard in personal if m is not None), execute)
    if not own:
        return Scores(None, None, None)
    whole = torch.stack(list((common or own).values())).sum(0)
    own_scores = {shard: task.score(tally) for shard, tally in own.items()}
    return Scores(
        global_accuracy=task.score(whole) if common else None,
        local_accuracy=sum(own_scores.values()) / len(own_scores),
        loss=task.mean_loss(whole),
        client_accuracy=[own_scores.get(shard, math.nan) for shard in shards],
    )


_PIECES = 8  # enough to keep a few workers busy to the end


def _tallies(requests: Iterable[Evaluate], execute: Executor) -> dict[int, Tensor]:
    """Tallies by shard, ascending."""
    found: dict[int, Tensor] = {}
    for response in execute(requests):
        if not isinstance(response, Tallies):
            raise RoundError(f"evaluation of shard {response[0]} failed: {response[1:]}")
        found |= dict(zip(response.shards, response.tallies, strict=True))
    return dict(sorted(found.items()))
