"""The only place that knows Flower: its SuperLink carries our messages, its processes are ours.

Flower's own executors would load whatever code a run ships. Here server and node ask the SuperLink
for messages and do the work themselves, with the code that is installed where they are: no code
travels. That takes more than Flower's public interface (`flwr.app`, `flwr.serverapp`), and so
certain versions of it; all of that is in `private.py`.
"""

from fedsieve.deploy.versions import check_version

VERSIONS = ("1.41", "1.42")  # in which what `private.py` uses is the same

check_version("flwr", VERSIONS, "pip install 'fedsieve[flower]' brings one of them.")
