"""Data sets, how they are cut among clients, and the mini-batches that come of it."""
