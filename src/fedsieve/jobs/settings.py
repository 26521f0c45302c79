"""The settings of a run, each declared once: type, default, help, range, and what it may do.

Flags of the command line, the keys of a TOML file, keywords of `fedsieve.run`, what may change when
a run is resumed, what may be tuned and what decides a result all follow from `Config`. Nothing here
needs torch: help is shown at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from fedsieve.core.errors import ConfigError
from fedsieve.core.options import in_range
from fedsieve.data import InputScale
from fedsieve.wire import Precision
from fedsieve.wire.feedback import read_feedback

MAX_COUNT = 10**7 - 1  # rounds and clients: their numbers have seven digits in the names of files
ALWAYS = 10**9  # more than any run has
JOB = "Job"
DATA = "Data and clients"
TRAINING = "Training"
MESSAGES = "Messages"
MACHINE = "Execution"
TRUST = "Trust"


class Setting(NamedTuple):
    """What is known of a setting beside its type and default."""

    group: str
    about: str
    low: float | None = None  # both bounds, or none
    high: float | None = None
    metavar: str = ""
    decides: bool = True  # the result depends on it
    can_resume: bool = False  # may be given anew when a run goes on, as all that decides nothing
    can_tune: bool = False  # `fedsieve tune` may choose it


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; `auto` and none are filled in from the data."""

    method: Annotated[str, Setting(JOB, "See `fedsieve methods`.", metavar="NAME")] = "fedavg"
    dataset: Annotated[
        str,
        Setting(
            JOB,
            "See `fedsieve datasets`; `npz:FILE` or `python:module:function` for your own.",
            metavar="NAME",
        ),
    ] = "digits"
    model: Annotated[
        str,
        Setting(JOB, "See `fedsieve models`; `auto` fits the data.", metavar="NAME", can_tune=True),
    ] = "auto"
    init_from: Annotated[
        str | None,
        Setting(JOB, "Safetensors file whose tensors the model starts from.", metavar="FILE"),
    ] = None
    partition: Annotated[
        str,
        Setting(
            DATA,
            "How data is split over clients, e.g. `dirichlet(0.5)`, `iid`, `natural`.",
            metavar="HOW",
        ),
    ] = "auto"
    input_scale: Annotated[
        InputScale,
        Setting(DATA, "Images with mean 0 and deviation 1, from 0 to 1, or from 0 to 255."),
    ] = "standard"
    clients: Annotated[
        int | None, Setting(DATA, "How many (20; natural partitions: all there are).", 1, MAX_COUNT)
    ] = None
    cohort: Annotated[
        int | None,
        Setting(
            DATA,
            "How many take part in a round (10, or all if fewer).",
            1,
            MAX_COUNT,
            can_tune=True,
        ),
    ] = None
    rounds: Annotated[
        int, Setting(TRAINING, "Communication rounds.", 1, MAX_COUNT, can_resume=True)
    ] = 30
    epochs: Annotated[
        int, Setting(TRAINING, "Passes over a client's data in a round.", 1, ALWAYS, can_tune=True)
    ] = 2
    steps: Annotated[
        int | None,
        Setting(TRAINING, "Mini-batches in a round, in place of epochs.", 1, ALWAYS, can_tune=True),
    ] = None
    batch_size: Annotated[
        int, Setting(TRAINING, "Examples in a mini-batch.", 1, ALWAYS, can_tune=True)
    ] = 16
    drop_last: Annotated[
        bool, Setting(TRAINING, "Leave out a short last mini-batch.", can_tune=True)
    ] = False
    validation: Annotated[
        float, Setting(DATA, "Share of each client's training data held out.", 0, 0.9)
    ] = 0.0
    score_on: Annotated[
        Literal["test", "validation"], Setting(DATA, "What accuracies are measured on.")
    ] = "test"
    seed: Annotated[int, Setting(JOB, "Everything random follows from it.", 0, 2**63 - 1)] = 0
    wire: Annotated[
        Precision, Setting(MESSAGES, "Floats in messages: exact, or rounded.", can_tune=True)
    ] = "fp32"
    up: Annotated[
        str | None,
        Setting(
            MESSAGES,
            "How clients' values are compressed, as differences to the broadcast: "
            "`eden(bits=2)`, `top_k(0.01)`, `uniform`, `qsgd`, `sign`, ... (none: as `wire` says).",
            metavar="COMPRESSION",
            can_tune=True,
        ),
    ] = None
    down: Annotated[
        str | None,
        Setting(
            MESSAGES,
            "How broadcasts are compressed (none: as `wire` says).",
            metavar="COMPRESSION",
            can_tune=True,
        ),
    ] = None
    round_bytes: Annotated[
        int | None,
        Setting(
            MESSAGES,
            "Bytes of a round, both directions: steps of `up=uniform` and `down=lattice`, which it "
            "stands for, are chosen so that it takes as many.",
            1,
            10**15,
        ),
    ] = None
    error_feedback: Annotated[
        bool | str | None,
        Setting(
            MESSAGES,
            "What clients do about what compression lost: `none`, `classic` (add it to their next "
            "message; also as a flag alone), `ef21`, `ahead(share=0.5)`.",
            metavar="[KIND]",
            can_tune=True,
        ),
    ] = False
    workers: Annotated[
        int,
        Setting(MACHINE, "Processes that train clients side by side.", 1, ALWAYS, decides=False),
    ] = 1
    eval_every: Annotated[int, Setting(MACHINE, "Rounds between evaluations.", 1, ALWAYS)] = 1
    checkpoint_every: Annotated[
        int, Setting(MACHINE, "Rounds between checkpoints.", 1, ALWAYS, decides=False)
    ] = 10
    min_replies: Annotated[
        int | None,
        Setting(
            TRUST,
            "Stop if fewer clients give a usable answer (none: if more fail than do).",
            1,
            MAX_COUNT,
            can_resume=True,
        ),
    ] = None
    aggregation: Annotated[
        str,
        Setting(
            TRUST,
            "How replies become one: `mean`, `trimmed_mean(0.2)`, `median`, `geometric_median`, "
            "`krum(0.2)`, `norm_clipped(1)`, `agreement`.",
            metavar="RULE",
            can_resume=True,
            can_tune=True,
        ),
    ] = "mean"
    clip_update: Annotated[
        str | None,
        Setting(
            TRUST,
            "Longest update of a client: a number, or `median_norm(3)` times the round's "
            "median; longer ones are scaled down.",
            metavar="RULE",
            can_resume=True,
            can_tune=True,
        ),
    ] = None
    max_examples: Annotated[
        int | None,
        Setting(
            TRUST, "The most examples that a client may count with.", 1, ALWAYS, can_resume=True
        ),
    ] = None
    attack: Annotated[
        str | None,
        Setting(
            TRUST,
            "Let some clients lie, to see what a rule bears: `sign_flip`, `scale(1000)`, "
            "`gaussian(1)`, `label_flip`, `count_lie`, `replay`, `shift(1)`.",
            metavar="HOW",
        ),
    ] = None
    attackers: Annotated[float, Setting(TRUST, "Share of clients that do.", 0, 1)] = 0.2
    save_messages: Annotated[
        tuple[int, ...],
        Setting(
            MESSAGES,
            "Rounds whose messages are kept for `fedsieve inspect`.",
            1,
            MAX_COUNT,
            metavar="1,10",
            decides=False,
        ),
    ] = ()
    state_ram_mb: Annotated[
        int,
        Setting(
            MACHINE, "Memory for client states; the rest is kept on disk.", 1, ALWAYS, decides=False
        ),
    ] = 1000
    data_root: Annotated[
        str | None,
        Setting(DATA, "Folder of data files; also FEDSIEVE_DATA.", metavar="FOLDER", decides=False),
    ] = None
    options: dict[str, Any] = field(default_factory=dict)  # the method's own

    def __post_init__(self) -> None:
        for name, known in SETTINGS.items():
            value = getattr(self, name)
            if known.low is not None and known.high is not None and value is not None:
                for item in value if isinstance(value, tuple) else (value,):
                    in_range(name, item, known.low, known.high)
        if self.cohort is not None and self.clients is not None and self.cohort > self.clients:
            raise ConfigError(
                f"cohort={self.cohort} is more than clients={self.clients}: "
                "lower --cohort or raise --clients."
            )
        read_feedback(self.error_feedback)
        if self.score_on == "validation" and not self.validation:
            raise ConfigError("score_on='validation' needs held-out data: set validation=0.1, say.")
        least = self.min_replies or 1
        if self.cohort is not None and least > self.cohort:
            raise ConfigError(
                f"min_replies={self.min_replies} is more than cohort={self.cohort}: "
                "no round could ever be accepted."
            )


SETTINGS: dict[str, Setting] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Config, include_extras=True).items()
    if name != "options"
}


def named(which: Callable[[Setting], bool]) -> tuple[str, ...]:
    """The names of the settings for which `which` holds."""
    return tuple(name for name, known in SETTINGS.items() if which(known))


RESUMABLE = named(lambda s: s.can_resume or not s.decides)
TUNABLE = named(lambda s: s.can_tune)
NOT_HASHED = named(lambda s: not s.decides)
