"""The round loop, its executors, client states and checkpoints."""
