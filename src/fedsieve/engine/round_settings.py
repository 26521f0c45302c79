"""The settings of a job that the loop needs, and the clients of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedsieve.core import keys
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import AnyMethod
from fedsieve.metrics.rows import Row
from fedsieve.robust.aggregation import MEAN, Aggregation
from fedsieve.robust.updates import Clip
from fedsieve.wire.compressors import EXACT, Compression


class Selected(NamedTuple):
    """Clients asked to take part, and how many of them beyond the method's cohort."""

    clients: list[int]
    spare: int
    reaches_all: bool  # the others are sent the broadcast as well


class Recorded(NamedTuple):
    """Clients that did not count in a round that is played again."""

    lost: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The settings of a run that the round loop needs."""

    seed: int
    rounds: int
    cohort: int
    eval_every: int
    min_replies: int | None = None  # usable ones; None: as many as failed, and one at least
    aggregation: Aggregation = MEAN
    clip_update: Clip | None = None  # of a reply's distance to its broadcast
    max_examples: int | None = None  # that a client may count with
    up: Compression = EXACT  # of clients' messages
    down: Compression = EXACT  # of broadcasts
    round_bytes: int | None = None  # of all messages of a round: steps are chosen for it
    keeps_changes: bool = False  # both ends hold what a client's last reply has changed
    kept_rounds: frozenset[int] = frozenset()  # whose messages are handed on whole
    holds_data: bool = True  # of all clients; else their first reply says how much they have
    spare: int = 0  # clients invited beyond the cohort; the first to answer count
    record: Mapping[int, Row] = field(default_factory=dict)  # rounds to be played as they went

    def select(self, method: AnyMethod, done: int, num_clients: int) -> Selected:
        """Choose the clients of the round after `done` rounds."""
        asked, draw, reaches_all = method.cohort(self.cohort, done)
        size = num_clients if asked is None else asked
        if not 1 <= size <= num_clients:
            raise ConfigError(
                f"the method asks for a cohort of {size}, there are {num_clients} clients."
            )
        row = self.record.get(done + 1)
        spare = min(self.spare if row is None else row.spare, num_clients - size)
        drawn = keys.sample(fold(self.seed, "cohort", draw), num_clients, size + spare)
        return Selected(drawn, spare, reaches_all)

    def recorded(self, number: int) -> Recorded:
        """Clients that failed and that came late in the record of round `number`."""
        row = self.record.get(number)
        return Recorded(frozenset(row.lost), frozenset(row.late)) if row else Recorded()
