"""The metrics of a run, each declared once: type, label, meaning, unit, total, which way is better.

The row of a round and the summary of a run have these fields. Trackers, reports, `fedsieve compare`
and `watch`, recipes and the table of columns in the documentation read what is declared here.
"""

import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
Unit = Literal["", "bytes", "clients", "MACs", "nats", "s", "score", "share", "values"]
RENAMED = {  # in files of earlier versions
    "flops_dense": "macs_dense",
    "flops_ideal": "macs_ideal",
    "flops_realisable": "macs_realisable",
    "stopped": "status",
}


class Metric(NamedTuple):
    """What is known of a column beside its name and type."""

    label: str
    about: str = ""
    unit: Unit = ""
    total: Literal["", "sum", "last"] = ""  # what of its rounds the summary of a run has
    better: Literal["", "higher", "lower"] = ""
    is_watched: bool = False  # `fedsieve watch` draws its curve


class Axis(NamedTuple):
    """A cost at equal amounts of which runs are compared."""

    title: str
    field: str  # of a row; it is added up, but for the number of the round
    unit: float = 1.0  # of the title


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured in every round, or in evaluated ones, and of a run as a whole."""

    global_accuracy: Annotated[
        float | None,
        Metric(
            "global score",
            "score of the global model on the union of all test shards; at evaluations, absent "
            "where there is no global model",
            "score", "last", "higher", is_watched=True,
        ),
    ] = None  # fmt: skip
    local_accuracy: Annotated[
        float | None,
        Metric(
            "local score",
            "unweighted mean over clients of the score on their own test shard; at evaluations",
            "score", "last", "higher", is_watched=True,
        ),
    ] = None  # fmt: skip
    seen_accuracy: Annotated[
        float | None,
        Metric(
            "local score, clients seen",
            "the local score over clients that have trained at least once; at evaluations of "
            "personal models",
            "score", "last", "higher",
        ),
    ] = None  # fmt: skip
    loss: Annotated[
        float | None,
        Metric(
            "test loss",
            "mean test loss of an example (squared error for regression, summed over several "
            "labels); at evaluations",
            "nats", "last", "lower", is_watched=True,
        ),
    ] = None  # fmt: skip
    density: Annotated[
        float,
        Metric(
            "density",
            "non-zeros among maskable weights of the global model; without one, the mean over the "
            "cohort's own models",
            "share", "last", "lower", is_watched=True,
        ),
    ]  # fmt: skip
    local_density: Annotated[
        float | None,
        Metric(
            "density of all clients' own models",
            "of all clients' own models together; layers that a method never masks count as "
            "whole; at evaluations",
            "share", "last", "lower",
        ),
    ] = None  # fmt: skip
    layer_mean_density: Annotated[
        float | None,
        Metric(
            "density, mean over layers",
            "the unweighted mean over layers, of all clients' own models or of the global one; at "
            "evaluations",
            "share", "last", "lower",
        ),
    ] = None  # fmt: skip
    deployed_values: Annotated[
        int | None,
        Metric(
            "values of the model when cut",
            "size of the global model with all cut out that can be, see [Export](export.md); at "
            "evaluations",
            "values", "last", "lower",
        ),
    ] = None  # fmt: skip
    deployed_macs: Annotated[
        int | None,
        Metric(
            "MACs of its forward pass",
            "of one forward pass of that model; at evaluations",
            "MACs", "last", "lower",
        ),
    ] = None  # fmt: skip
    true_discovery: Annotated[
        float | None,
        Metric(
            "support that is in the planted truth",
            "precision of a linear model's support against the planted truth of synthetic data; "
            "at evaluations",
            "share", "last", "higher",
        ),
    ] = None  # fmt: skip
    truth_recall: Annotated[
        float | None,
        Metric(
            "planted truth that was found",
            "recall of the same; at evaluations",
            "share", "last", "higher",
        ),
    ] = None  # fmt: skip
    values: Annotated[
        dict[str, float],
        Metric(
            "the method's own figures",
            "the method's own figures: means over the cohort, and the server's (`atoms_1`: the "
            "width of a matched layer)",
            total="last",
        ),
    ] = {}
    up_bytes: Annotated[
        int,
        Metric(
            "sent up", "payloads from clients to the server", "bytes", "sum", "lower",
            is_watched=True,
        ),
    ]  # fmt: skip
    down_bytes: Annotated[
        int,
        Metric(
            "sent down", "payloads from the server to clients", "bytes", "sum", "lower",
            is_watched=True,
        ),
    ]  # fmt: skip
    up_paper_bytes: Annotated[
        int,
        Metric(
            "up, by the papers' formula",
            "the same messages at 4 bytes a value, masks and headers free, see "
            "[Counting](../counting.md)",
            "bytes", "sum",
        ),
    ]  # fmt: skip
    down_paper_bytes: Annotated[
        int, Metric("down, by the papers' formula", "likewise", "bytes", "sum")
    ]
    macs_dense: Annotated[
        int, Metric("dense MACs", "training of the cohort with all weights", "MACs", "sum")
    ]
    macs_ideal: Annotated[
        int, Metric("ideal MACs", "with every masked weight skipped", "MACs", "sum", "lower")
    ]
    macs_realisable: Annotated[
        int,
        Metric(
            "realisable MACs", "with channels skipped that can be cut out", "MACs", "sum", "lower"
        ),
    ]
    failed: Annotated[int, Metric("failed replies", "whose reply was not used", "clients", "sum")]
    seconds: Annotated[
        float, Metric("wall time", "wall time of the round, evaluation included", "s", "sum")
    ]

    @property
    def sent_bytes(self) -> Annotated[int, Metric("sent, both ways", unit="bytes", better="lower")]:
        return self.up_bytes + self.down_bytes

    @property
    def paper_bytes(self) -> Annotated[int, Metric("papers' formula, both ways", unit="bytes")]:
        return self.up_paper_bytes + self.down_paper_bytes

    @property
    def is_local(self) -> bool:
        """Whether there is no global model, so that the score is that of the clients' own."""
        return self.global_accuracy is None and self.local_accuracy is not None

    @property
    def score_field(self) -> str:
        """The global score, or the local one where there is no global model."""
        return "local_accuracy" if self.is_local else "global_accuracy"

    @property
    def main_score(self) -> float | None:
        """The value of `score_field`."""
        return self.local_accuracy if self.is_local else self.global_accuracy

    @property
    def scores(self) -> dict[str, float]:
        """The scores that were measured, as `global` and `local`."""
        measured = {scope(name): getattr(self, name) for name in SCORES}
        return {name: value for name, value in measured.items() if value is not None}


class Row(Measured, frozen=True, omit_defaults=True):
    """The metrics of one round; a line of `rounds.jsonl`."""

    round: Annotated[int, Metric("round", "1, 2, ...")]
    clients: Annotated[int, Metric("clients", "whose reply was used", "clients")]
    spare: Annotated[
        int, Metric("spare", "in deployments: how many were invited beyond the cohort", "clients")
    ] = 0
    lost: Annotated[list[int], Metric("lost", "which clients failed", "clients")] = []
    late: Annotated[
        list[int],
        Metric("late", "in deployments: which were invited and not waited for", "clients"),
    ] = []


class Summary(Measured, frozen=True):
    """Which run it was, how it ended, its totals and final figures; `result.json`."""

    method: Annotated[str, Metric("method")]
    dataset: Annotated[str, Metric("data set")]
    model: Annotated[str, Metric("model")]
    partition: Annotated[str, Metric("partition")]
    partition_fingerprint: Annotated[str, Metric("partition fingerprint")]
    seed: Annotated[int, Metric("seed")]
    num_clients: Annotated[int, Metric("clients")]
    rounds: Annotated[int, Metric("rounds")]
    status: Annotated[str, Metric("status", "finished, or after which round it ended")]
    score: Annotated[str, Metric("score", "what scores are: accuracy, micro-F1 or R2")]
    model_hash: Annotated[str, Metric("model hash")]
    versions: dict[str, str]
    best_global_accuracy: float | None = None
    best_local_accuracy: float | None = None


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of an evaluated round that are not in its row: by client and by layer."""

    round: int
    client_accuracy: list[float | None]  # of each test shard's own, or the global, model
    layer_density: dict[str, float]  # of the global model, or the mean over all clients' own
    client_density: list[float] = []  # of each client's own model


def _declared(kind: type[msgspec.Struct]) -> dict[str, Metric]:
    """What the fields and properties of a class declare, `best_NAME` after NAME."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: hints[name] for name in kind.__struct_fields__}
    for name, value in vars(Measured).items():
        if isinstance(value, property):
            fields[name] = typing.get_type_hints(value.fget, include_extras=True)["return"]
    metrics: dict[str, Metric] = {}
    for name, hint in fields.items():
        if hasattr(hint, "__metadata__"):
            metrics[name] = metric = hint.__metadata__[0]
            if f"best_{name}" in fields:
                metrics[f"best_{name}"] = metric._replace(label=f"{metric.label}, best")
    return metrics


MEASURED = _declared(Measured)
COLUMNS = _declared(Row)
SUMMARY = _declared(Summary)
SCORES = tuple(name for name in MEASURED if f"best_{name}" in SUMMARY)
AXES = {
    "bytes": Axis("MB", "sent_bytes", 1e6),
    "paper_bytes": Axis("paper MB", "paper_bytes", 1e6),
    **{name: Axis(COLUMNS[name].label, name) for name in ("macs_ideal", "macs_dense")},
    "rounds": Axis("rounds", "round"),
}


def scope(score: str) -> str:
    """`global` or `local`: what a score is of."""
    return score.removesuffix("_accuracy")


def last(rows: Sequence[Row], name: str) -> Any:
    """The newest value of an evaluation field, or None."""
    return next((v for row in reversed(rows) if (v := getattr(row, name)) is not None), None)


def best(rows: Sequence[Row], name: str) -> float | None:
    """The largest value of an evaluation field."""
    return max((v for row in rows if (v := getattr(row, name)) is not None), default=None)


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums, last and best values of what rows measured, as a summary has them; known ones only."""
    summary: dict[str, Any] = {}
    for name, metric in MEASURED.items():
        if metric.total == "sum":
            summary[name] = sum(getattr(row, name) for row in rows)
        elif metric.total == "last":
            summary[name] = last(rows, name)
        if name in SCORES:
            summary[f"best_{name}"] = best(rows, name)
    return {name: value for name, value in summary.items() if value is not None}


def read_row(line: bytes) -> Row:
    """A line of `rounds.jsonl`, of this version or an earlier one; MsgspecError if it is none."""
    return _read(line, Row)


def read_summary(data: bytes) -> Summary:
    """The summary in `result.json`, of this version or an earlier one."""
    return _read(data, Summary)


def _read(data: bytes, kind: type[T]) -> T:
    fields = msgspec.json.decode(data, type=dict[str, Any])
    return msgspec.convert({RENAMED.get(n, n): value for n, value in fields.items()}, kind)
