"""Data sets by name: embedded, from files, from texts, synthetic, or with their owners."""
