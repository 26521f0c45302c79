"""The only place that knows Flower: its grid carries our parcels, its processes are ours to run.

Flower's own executors would load whatever code a run ships. Here server and node ask Flower for the
task and do the work themselves, with the code that is installed where they are: no code travels.
What is used beyond Flower's public interface is the same in 1.41 and 1.42.
"""

import logging

from flwr.supercore.logger import FLOWER_LOGGER

FLOWER_LOGGER.setLevel(logging.WARNING)
