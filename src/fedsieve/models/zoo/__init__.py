"""Architectures of the papers, and their names."""
