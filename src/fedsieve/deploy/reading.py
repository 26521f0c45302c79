"""From an answer to a response. A node may send anything: what does not fit is its failure."""

import torch

from fedsieve.core.errors import WireError
from fedsieve.core.message import Params
from fedsieve.deploy.envelope import (
    EvaluateCall,
    EvaluateOwnCall,
    Failed,
    ObserveCall,
    Refused,
    Result,
    Saw,
    Scored,
    TrainCall,
    Trained,
    Work,
)
from fedsieve.engine import blob
from fedsieve.engine.client import Failure, Observed, Refusal, Reply, Response, Share, Tallies
from fedsieve.engine.store import Receipt
from fedsieve.metrics.macs import Macs
from fedsieve.wire.frame import Payload

_MOST = 2**56  # sums over a cohort stay far from 2**64, which no row can hold


def response_of(client: int, number: int, work: Work, result: Result) -> Response:
    """What `client` says to the work it was given in round `number`."""
    try:
        return _read(client, number, work, result)
    except Exception as error:  # noqa: BLE001 - whatever a node sends must not stop the run
        return Failure(client, f"its answer cannot be used: {error}")


def _read(client: int, number: int, work: Work, result: Result) -> Response:
    match work, result:
        case _, Refused(error):
            return Refusal(client, error)
        case _, Failed(error):
            return Failure(client, error)
        case TrainCall(), Trained(up, sizes, paper, digest, values, macs, seconds):
            if sum(sizes) != len(up):
                raise WireError(f"{len(up)} bytes were sent, it counts {sum(sizes)}.")
            if not all(0 <= figure < _MOST for figure in (paper, *macs)):
                raise WireError(f"bytes {paper} and MACs {macs} are impossible.")
            receipt = _receipt(number, digest)
            return Reply(
                client, Payload(up, *sizes), paper, receipt, {}, values, Macs(*macs), seconds
            )
        case ObserveCall(), Saw(digest):
            return Observed(client, _receipt(number, digest))
        case EvaluateCall() | EvaluateOwnCall(), Scored(tallies, shares):
            found = blob.unpack(Params, tallies)["tallies"]
            shards = work.shards if len(found) else ()
            if found.dtype != torch.float64 or len(found) != len(shards):
                raise WireError(f"{len(found)} tallies for {len(work.shards)} shards.")
            own = {name: Share(*share) for name, share in shares.items()}
            if not all(0 <= share.density <= 1 <= share.size < _MOST for share in own.values()):
                raise WireError("its model has impossible densities or sizes.")
            return Tallies(shards, found, client if own else -1, own)
    raise WireError(f"{type(result).__name__} is no answer to {type(work).__name__}.")


def _receipt(number: int, digest: bytes) -> Receipt:
    if len(digest) != 16:
        raise WireError(f"a state's hash has 16 bytes, found {len(digest)}.")
    return Receipt(number, torch.tensor(list(digest), dtype=torch.uint8))
