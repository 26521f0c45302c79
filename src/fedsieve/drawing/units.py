"""Numbers as people write them: shares, scores, bytes, large counts, durations."""

import math

MISSING = "–"


def share(value: float | None, digits: int = 1) -> str:
    """0.8507 as 85.1 %."""
    return MISSING if value is None else f"{100 * value:.{digits}f} %"


def score(value: float | None, kind: str) -> str:
    """An accuracy or F1 in per cent; R2, which may be negative, as it is."""
    if value is None:
        return MISSING
    return f"{value:.3f}" if kind == "R2" else share(value)


def size(count: float) -> str:
    """Bytes in kB, MB (10^6) or GB."""
    for limit, unit, digits in ((1e9, "GB", 2), (1e6, "MB", 2), (1e3, "kB", 1)):
        if count >= limit:
            return f"{count / limit:.{digits}f} {unit}"
    return f"{count:.0f} B"


def large(count: float) -> str:
    """A large number with its power of thousand: 5.12 G."""
    if count < 1000:
        return f"{count:.3g}"
    power = min(int(math.log10(count) / 3), 6)
    return f"{_short(count / 1000**power)} {' kMGTPE'[power]}"


def number(value: float) -> str:
    """A tick's number without needless digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole / 3600:.1f} h"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
