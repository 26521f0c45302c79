"""How many processes are of use on this machine."""

import logging
import os

log = logging.getLogger("fedsieve")


def cores() -> int:
    """Cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def busy(workers: int, clients: int | None = None) -> int:
    """`workers`, or as many as cores and clients in a round can keep busy, with a word."""
    limits = {cores(): "cores of this machine"}
    if clients is not None:
        limits.setdefault(clients, "clients of a round")
    most = min(limits)
    if workers <= most:
        return workers
    log.warning(
        "workers=%d is more than the %d %s: %d at work, with the same results.",
        *(workers, most, limits[most], most),
    )
    return most
