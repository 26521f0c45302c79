"""Local training: the loop of a client, optimisers and schedules as data."""
