"""Lossy forms of float32 values, each a paper's: what is kept of them, and how it is written."""
