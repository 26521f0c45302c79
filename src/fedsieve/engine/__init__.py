"""The round loop, requests to clients, executors, and the run folder."""
