"""Where clients are trained: in this process, or in a pool of processes."""
