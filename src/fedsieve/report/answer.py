"""The answer in a sentence: which run to take, and at what price."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedsieve.drawing.units import size

CLOSE = 0.02  # two points of accuracy: a run this near the best one is as good for its price


class Candidate(NamedTuple):
    """A run, or the mean over the seeds of one, by what decides between them."""

    label: str
    score: float
    sent: float  # bytes, up and down together
    is_local: bool = False  # the score is that of the clients' own models


def plain_score(value: float) -> str:
    return f"{value:.3f}"


def percent(share: float) -> str:
    """1.234 as 123 %, 0.0138 as 1.4 %, 0.00042 as 0.042 %."""
    digits = ".0f" if share >= 0.0995 else ".1f" if share >= 0.001 else ".2g"
    return f"{100 * share:{digits}} %"


def reference(labels: dict[str, tuple[str, str]], candidates: Sequence[Candidate]) -> str | None:
    """Whose bytes others are a share of: plain FedAvg, else the best run.

    `labels` has the method and the wire precision of each.
    """
    plain = [label for label, which in labels.items() if which == ("fedavg", "fp32")]
    if plain:
        return plain[0]
    return max(candidates, key=_rank).label if candidates else None


def answer(
    candidates: Sequence[Candidate],
    base: str | None,
    kind: str,
    text: Callable[[float], str] = plain_score,
) -> str:
    """A sentence on the cheapest run that is as good as the best, or on the best.

    Args:
        candidates: runs that have a score.
        base: the label of the one whose bytes the others' are a share of.
        kind: what the score is, for example accuracy.
        text: how a score is written.
    """
    if not candidates:
        return "No run has a score yet."
    best = max(candidates, key=_rank)
    close = [c for c in candidates if c.score >= best.score - CLOSE]
    winner = min(close, key=lambda c: (c.sent, -c.score))
    price = _price(winner, next((c for c in candidates if c.label == base), None))
    score = f"{text(winner.score)} {_which(winner)}{kind}"
    if len(candidates) == 1:
        return f"{winner.label} reaches {score} with {price}."
    if winner != best:
        behind = f"{_points(best, winner, kind)} below the best"
        return f"{winner.label} reaches {score} with {price}, {behind} ({_at(best, text)})."
    cheapest = min(candidates, key=lambda c: (c.sent, -c.score))
    if cheapest == best:
        return f"{winner.label} is best and cheapest: {score} with {price}."
    behind = _points(best, cheapest, kind)
    return (
        f"{winner.label} is best: {score} with {price}. The cheapest is {cheapest.label}: "
        f"{_at(cheapest, text, with_label=False)} with {size(cheapest.sent)}, {behind} below."
    )


def _rank(candidate: Candidate) -> tuple[float, float]:
    return candidate.score, -candidate.sent


def _which(candidate: Candidate) -> str:
    return "local " if candidate.is_local else ""


def _at(candidate: Candidate, text: Callable[[float], str], *, with_label: bool = True) -> str:
    words = [candidate.label] if with_label else []
    words += [text(candidate.score), *(["local"] if candidate.is_local else [])]
    return " ".join(words)


def _price(winner: Candidate, base: Candidate | None) -> str:
    if base is None or base == winner or not base.sent:
        return size(winner.sent)
    return f"{size(winner.sent)}, {percent(winner.sent / base.sent)} of {base.label}'s bytes"


def _points(best: Candidate, other: Candidate, kind: str) -> str:
    gap = round(best.score, 3) - round(other.score, 3)  # of the figures that are shown
    return f"{gap:.3f}" if kind == "R2" else f"{100 * gap:.1f} points"
