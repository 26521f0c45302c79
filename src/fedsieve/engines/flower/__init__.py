"""The only place that knows Flower: its grid carries our parcels, its processes are ours to run.

Flower's own executors would load whatever code a run ships. Here server and node ask Flower for the
task and do the work themselves, with the code that is installed where they are: no code travels.
That takes more than Flower's public interface (`flwr.app`, `flwr.serverapp`), and so certain
versions of it.
"""

from fedsieve.engines.remote.versions import check_version

VERSIONS = ("1.41", "1.42")  # in which what is used of the modules below is the same
PRIVATE = {
    "flwr.cli.build": "a run must bring a bundle of code, even an empty one",
    "flwr.common.constant": "codes of an error and of a task's end",
    "flwr.common.serde": "a grid wants the run it belongs to",
    "flwr.proto.control_pb2": "what operators ask: admit a key, start, stop and list runs",
    "flwr.proto.fab_pb2": "the bundle",
    "flwr.proto.runtime_pb2": "what executors ask: take a task, read it, keep it alive",
    "flwr.supercore.constant": "kinds of tasks",
    "flwr.supercore.control": "the client of `flwr run` and `flwr supernode register`",
    "flwr.supercore.interceptors": "how executors show that they may have a task",
    "flwr.supercore.logger": "Flower tells every message at level INFO",
    "flwr.supercore.primitives.asymmetric": "the form in which a key is admitted",
    "flwr.supercore.runtime": "the client of executors",
    "flwr.supercore.task_identity": "a Message is refused outside a task: this says which it is",
    "flwr.superlink.grid.http_grid": "the grid of Flower's own server process",
    "flwr.supernode.runtime.run_clientapp": "how a node's executor reads a message and answers",
}

check_version("flwr", VERSIONS, "pip install 'fedsieve[flower]' brings one of them.")
