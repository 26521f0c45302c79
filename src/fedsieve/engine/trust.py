"""Checks of replies: claimed numbers of examples, shapes, and the size of an update."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import RoundError
from fedsieve.core.message import Natural, Number, fields
from fedsieve.engine.metrics import Accepted
from fedsieve.engine.requests import Failure
from fedsieve.engine.round_settings import RoundSettings
from fedsieve.robust.aggregation import Mean, Replies
from fedsieve.robust.updates import clipped

MAX_EXAMPLES = 10**11  # of one client; sums over all stay within 63 bits
BLOWN_UP = 1e9  # times the largest value before, or 1


def wrong_claim(up: Any, client: int, examples: int | None) -> str:
    """What is wrong with the numbers that a reply claims; empty if nothing is.

    `examples` is what the client is known to hold, if that is known.
    """
    for name, role in fields(type(up)):
        if not isinstance(role, Natural):
            continue
        claim = getattr(up, name)
        if role.is_sender and claim != client:
            return f"{name}: it is signed by client {claim}"
        if role.is_examples and examples is not None and claim != examples:
            return f"{name}: it claims {claim}, it is known to have {examples}"
        if role.is_examples and claim > MAX_EXAMPLES:
            return f"{name}: it claims {claim}, the most that is believed is {MAX_EXAMPLES}"
    return ""


def claimed_examples(up: Any) -> int | None:
    """How many examples a reply says that its sender has."""
    for name, role in fields(type(up)):
        if isinstance(role, Natural) and role.is_examples:
            return int(getattr(up, name))
    return None


def unlike_others(accepted: Sequence[Accepted], down: type) -> list[Failure]:
    """Replies with other tensors than most, in fields that the broadcast has nothing like."""
    known = {f.name for f in fields(down)}
    strangers: dict[int, Failure] = {}
    for name, role in fields(type(accepted[0].up)) if accepted else ():
        if name in known or isinstance(role, Number | Natural):
            continue
        forms = {a.reply.client: _form(getattr(a.up, name)) for a in accepted}
        counts = Counter(form for form in forms.values() if form)
        usual = counts.most_common(1)[0][0] if counts else ()
        for client, form in forms.items():
            if form and form != usual:
                what = f"its message does not fit: {name} has other tensors than most replies"
                strangers.setdefault(client, Failure(client, what))
    return list(strangers.values())


def believed(plan: RoundSettings, ups: Sequence[Any], downs: Sequence[Any]) -> list[Any]:
    """Replies as the method's update gets them: counts capped, updates clipped and combined."""
    most = plan.max_examples
    if most is not None:
        ups = [_capped(up, most) for up in ups]
    if plan.clip_update is not None:
        ups = clipped(plan.clip_update, ups, downs)
    return plan.aggregation.combine(Replies(ups, downs))


def needs_broadcasts(plan: RoundSettings) -> bool:
    """Whether `believed` needs the broadcasts."""
    return plan.clip_update is not None or not isinstance(plan.aggregation, Mean)


def check_update(before: Any, after: Any, accepted: Sequence[Accepted], number: int) -> None:
    """Refuse a server state whose values have left all bounds in one update.

    Raises:
        RoundError: it names the clients whose replies are largest.
    """
    largest = _largest(after)
    if math.isfinite(largest) and largest <= BLOWN_UP * max(1.0, _largest(before)):
        return
    order = sorted(accepted, key=lambda a: -_largest(a.up))[:3]
    named = ", ".join(f"client {a.reply.client} ({_largest(a.up):.3g})" for a in order)
    raise RoundError(
        f"round {number}: the update made the model's largest value {largest:.3g}, before it was "
        f"{_largest(before):.3g}. The largest values of replies: {named}. All rounds before are "
        "kept: go on with --resume and --clip-update 'median_norm(3)' or another --aggregation, "
        "or lower the learning rate."
    )


def _largest(value: Any) -> float:
    """The largest absolute value of all float tensors; NaN if there is one."""
    tensors = [
        x
        for _, x in tree.leaves(value)
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
    ]
    if not tensors:
        return 0.0
    return float(torch.stack(torch._foreach_norm(tensors, math.inf)).max())


def _capped(up: Any, most: int) -> Any:
    names = [n for n, r in fields(type(up)) if isinstance(r, Natural) and r.is_examples]
    return up._replace(**{name: min(getattr(up, name), most) for name in names})


def _form(tensors: dict[str, Tensor]) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    return tuple(sorted((n, t.shape, t.dtype) for n, t in tensors.items()))
