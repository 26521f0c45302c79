"""From settings to a finished run: configuration, runs, sweeps, tuning, the library of runs."""
