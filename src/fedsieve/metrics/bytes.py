"""Bytes of every message by part, and by the paper's own formula."""

from typing import Literal

import msgspec


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One message: `total_bytes` is len(payload), the three parts add up to it."""

    round: int
    client: int
    direction: Literal["up", "down"]
    total_bytes: int
    header_bytes: int
    mask_bytes: int
    value_bytes: int
    paper_bytes: int


class Traffic(msgspec.Struct, kw_only=True):
    """Sums over messages of one direction."""

    total_bytes: int = 0
    header_bytes: int = 0
    mask_bytes: int = 0
    value_bytes: int = 0
    paper_bytes: int = 0


def total(messages: list[Sent], direction: Literal["up", "down"]) -> Traffic:
    """All messages of one direction added up."""
    sent = [m for m in messages if m.direction == direction]
    return Traffic(
        total_bytes=sum(m.total_bytes for m in sent),
        header_bytes=sum(m.header_bytes for m in sent),
        mask_bytes=sum(m.mask_bytes for m in sent),
        value_bytes=sum(m.value_bytes for m in sent),
        paper_bytes=sum(m.paper_bytes for m in sent),
    )
