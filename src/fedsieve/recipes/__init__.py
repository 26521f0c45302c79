"""Tables to be run and judged: recipes as values, how they are run, and those of the papers."""

from fedsieve.recipes import papers

__all__ = ["papers"]  # importing them registers them
