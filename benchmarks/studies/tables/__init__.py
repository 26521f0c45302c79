"""How the tables of docs/results are made of stored results: one file for each page."""

from collections.abc import Callable
from pathlib import Path

from tables import attacks, defaults, error_feedback, fedsparse, flops, matching, spafl, vardrop

TABLES: dict[str, Callable[[Path], str]] = {
    **attacks.TABLES,
    **defaults.TABLES,
    **error_feedback.TABLES,
    **fedsparse.TABLES,
    **flops.TABLES,
    **matching.TABLES,
    **spafl.TABLES,
    **vardrop.TABLES,
}
