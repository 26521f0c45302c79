"""Ledger: what was sent and what was computed."""
