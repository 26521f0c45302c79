"""Rows as a pandas table: `frame(read_run(path).rows)`, as `Result.frame()` gives them."""

from fedsieve.result import frame

__all__ = ["frame"]
