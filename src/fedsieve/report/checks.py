"""What a reader of a page should know before trusting a comparison."""

from collections.abc import Sequence

from fedsieve.metrics.rows import SCORES, scope
from fedsieve.report.figures import Run

FALL = 0.05  # of a score below its best that deserves a word
SLACK = 1.1  # a density this many times the target is not the target any more
SPARSE_OPTIONS = ("target_density", "gate_cost", "sparsity_weight", "log_threshold")
SAME = {
    "dataset": "data sets",
    "score": "scores",
    "partition_fingerprint": "partitions of the data",
    "model": "models",
}


def warnings(runs: Sequence[Run]) -> list[str]:
    """Sentences, those on single runs first."""
    return [f"{run.label}: {text}" for run in runs for text in _of_run(run)] + _between(runs)


def _of_run(run: Run) -> list[str]:
    record, told = run.record, []
    summary, rows = record.summary, record.rows
    if summary.failed:
        asked = summary.failed + sum(row.clients for row in rows)
        rounds = sum(row.failed > 0 for row in rows)
        told.append(f"{summary.failed} of {asked} replies failed, in {rounds} rounds.")
    if summary.status != "finished":
        told.append(f"did not finish: {summary.status}.")
    if not record.evaluations:
        told.append("no round was evaluated.")
    evaluated = {e.round for e in record.evaluations}
    lost = [row.round for row in rows if row.round in evaluated and row.loss is None]
    if lost:
        told.append(f"the loss was not finite in {len(lost)} rounds, first in round {lost[0]}.")
    for name in SCORES:
        final, best = getattr(summary, name), getattr(summary, f"best_{name}")
        if final is not None and best is not None and best - final > FALL:
            what = f"{scope(name)} {summary.score}"
            told.append(f"the final {what} {final:.3f} is well below its best, {best:.3f}.")
    return told + _density(run) + _messages(run)


def _density(run: Run) -> list[str]:
    options, density = run.record.config.options, run.record.summary.density
    target = options.get("target_density")
    if density >= 1 and any(name in options for name in SPARSE_OPTIONS) and target != 1:
        return ["the model is dense (density 1) although the method should make it sparse."]
    if isinstance(target, float) and density > SLACK * target:
        return [f"density {density:.4f} is above target_density={target:g}."]
    return []


def _messages(run: Run) -> list[str]:
    summary, sums = run.record.summary, run.sent
    counted = (sums["up"].total_bytes, sums["down"].total_bytes)
    if counted == (summary.up_bytes, summary.down_bytes):
        return []
    told = f"{summary.up_bytes} and {summary.down_bytes}"
    return [f"messages.jsonl adds up to {counted[0]} bytes up, {counted[1]} down, not to {told}."]


def _between(runs: Sequence[Run]) -> list[str]:
    told = []
    for field, words in SAME.items():
        values = dict.fromkeys(getattr(run.record.summary, field) for run in runs)
        if len(values) > 1:
            shown = ", ".join(map(str, values))
            told.append(f"The runs have different {words} ({shown}): not a like-for-like view.")
    if len({run.record.config.score_on for run in runs}) > 1:
        told.append("Some runs are scored on test data, others on validation data.")
    versions = [run.record.summary.versions for run in runs]
    changed = sorted({n for v in versions for n in v if v[n] != versions[0].get(n)})
    if changed:
        told.append(f"The runs were made with different versions of {', '.join(changed)}.")
    return told
