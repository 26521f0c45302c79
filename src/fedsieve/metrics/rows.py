"""The result record: one row per round, and the summary of a run."""

from typing import Any

import msgspec

SCORES = ("global_accuracy", "local_accuracy")


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one round did; the last fields stand in rounds that were evaluated."""

    round: int
    seconds: float
    clients: int
    failed: int
    up_bytes: int
    down_bytes: int
    up_paper_bytes: int
    down_paper_bytes: int
    flops_dense: int
    flops_ideal: int
    flops_realisable: int
    density: float
    values: dict[str, float] = {}  # the method's own figures, means over the cohort
    global_accuracy: float | None = None
    local_accuracy: float | None = None
    seen_accuracy: float | None = None  # local, over clients that have trained
    local_density: float | None = None  # of all clients' own models; `density` is the cohort's
    layer_mean_density: float | None = None  # unweighted mean over layers of the same models
    loss: float | None = None
    deployed_values: int | None = None  # of the global model, with all cut out that can be
    deployed_macs: int | None = None  # of one forward pass of it
    spare: int = 0  # invited beyond the cohort
    lost: list[int] = []  # clients that failed
    late: list[int] = []  # invited, and not waited for
    true_discovery: float | None = None  # share of the model's support that the planted truth has
    truth_recall: float | None = None  # share of the planted truth that the model's support has


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluated round showed beyond its row."""

    round: int
    client_accuracy: list[float | None]  # of each test shard's own, or the global, model
    layer_density: dict[str, float]  # of the global model, or the mean over all clients' own
    client_density: list[float] = []  # of each client's own model


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Totals and final figures of a run; `result.json`."""

    method: str
    dataset: str
    model: str
    partition: str
    partition_fingerprint: str
    seed: int
    num_clients: int
    rounds: int
    seconds: float
    stopped: str  # "finished" or why it ended earlier
    score: str  # what the accuracies are: accuracy, micro-F1 or R2
    global_accuracy: float | None
    local_accuracy: float | None
    loss: float | None
    best_global_accuracy: float | None
    best_local_accuracy: float | None
    seen_accuracy: float | None = None
    local_density: float | None = None
    layer_mean_density: float | None = None
    density: float
    up_bytes: int
    down_bytes: int
    up_paper_bytes: int
    down_paper_bytes: int
    flops_dense: int
    flops_ideal: int
    flops_realisable: int
    failed: int
    model_hash: str
    versions: dict[str, str]
    deployed_values: int | None = None
    deployed_macs: int | None = None
    true_discovery: float | None = None  # against a planted truth, if the data has one
    truth_recall: float | None = None
    values: dict[str, float] = {}  # the method's own figures in the last round


def last(rows: list[Row], name: str) -> Any:
    """The newest value of an evaluation field, or None."""
    return next((v for row in reversed(rows) if (v := getattr(row, name)) is not None), None)


def best(rows: list[Row], name: str) -> float | None:
    """The largest value of an evaluation field."""
    return max((v for row in rows if (v := getattr(row, name)) is not None), default=None)
