"""Evaluation: the global model on the union of test shards, personal ones each on its own."""

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.errors import RoundError
from fedsieve.core.method import AnyMethod
from fedsieve.data.federation import Federation
from fedsieve.engines.site import Evaluate, Executor, Tallies
from fedsieve.engines.store import ClientStore
from fedsieve.ledger.flops import layer_density, mean_density, overall


class Scores(NamedTuple):
    """`global_accuracy` is None where a method has no global model; densities are of own ones."""

    global_accuracy: float | None
    local_accuracy: float | None
    loss: float | None
    seen_accuracy: float | None = None
    client_accuracy: list[float] = []  # noqa: RUF012 - never changed
    client_density: list[float] = []  # noqa: RUF012 - never changed
    layer_density: dict[str, float] = {}  # noqa: RUF012 - never changed


def evaluate(
    method: AnyMethod,
    server: Any,
    store: ClientStore,
    federation: Federation,
    execute: Executor,
    seen: frozenset[int] = frozenset(),
) -> Scores:
    """Scores of what the method would deploy now.

    local_accuracy is the unweighted mean over test shards of the client's own model, or of the
    global one where clients have none of their own; seen_accuracy that over the clients in `seen`,
    who have trained. The model of pooled data is the global one.
    """
    task = method.task
    shards = range(federation.num_shards)
    is_pooled = federation.is_pooled
    model = method.deploy(server, store.get(0) if is_pooled else ())
    common: Tensor | None = None
    if model is not None:
        pieces = [tuple(shards[i::_PIECES]) for i in range(_PIECES)]
        common = _tallies([Evaluate(model, piece) for piece in pieces if piece], execute)
    own, densities = common, list[dict[str, float]]()
    has_own = method.personal and not is_pooled

    def personal() -> Iterator[Evaluate]:
        """One at a time: thousands of personal models need not be in memory together."""
        for shard in shards:
            mine = method.deploy(server, store.get(shard))
            if mine is not None:
                densities.append(layer_density(mine, task.graph))
                yield Evaluate(mine, (shard,))

    if has_own:
        own = _tallies(personal(), execute)
    if own is None:
        return Scores(None, None, None)
    whole = (own if common is None else common).sum(0)
    own_scores = [task.score(tally) for tally in own]
    return Scores(
        global_accuracy=None if common is None else task.score(whole),
        local_accuracy=sum(own_scores) / len(own_scores),
        loss=task.mean_loss(whole),
        seen_accuracy=fmean(own_scores[c] for c in sorted(seen)) if has_own and seen else None,
        client_accuracy=own_scores,
        client_density=[overall(shares, task.graph) for shares in densities],
        layer_density=mean_density(densities),
    )


_PIECES = 8  # enough to keep a few workers busy to the end


def _tallies(requests: Iterable[Evaluate], execute: Executor) -> Tensor:
    found: dict[int, Tensor] = {}
    for response in execute(requests):
        if not isinstance(response, Tallies):
            raise RoundError(f"evaluation of shard {response[0]} failed: {response[1:]}")
        found |= dict(zip(response.shards, response.tallies, strict=True))
    return torch.stack([found[shard] for shard in sorted(found)])
