"""Finished models as files of their own, cut to what is in use."""

from fedsieve.export.model import Description, load, read, save
from fedsieve.export.run import export_run

__all__ = ["Description", "export_run", "load", "read", "save"]
