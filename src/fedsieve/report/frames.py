"""Runs as tables: `compare(a, b)` for a notebook, `frame(rows)` for pandas."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from fedsieve.drawing.plot import Plot
from fedsieve.drawing.units import size
from fedsieve.jobs.library import Record, read_run
from fedsieve.jobs.result import Result, data_frame, frame, plot_scores
from fedsieve.report.answer import percent
from fedsieve.report.budget import Figure
from fedsieve.report.compare import Comparison, Group, Line, group
from fedsieve.report.compare import compare as compare_records
from fedsieve.report.markup import render

__all__ = ["Runs", "compare", "frame"]


class Runs:
    """Runs side by side, a row for each configuration; figures are means over its seeds.

    Attributes:
        answer: which run is best, at what cost.
        rows: a dict for each row, ready for any table.
        comparison: everything `fedsieve compare --json` gives.
    """

    def __init__(self, comparison: Comparison, groups: Sequence[Group]) -> None:
        self.comparison, self.answer = comparison, comparison.answer
        self.rows = [_row(line, g) for line, g in zip(comparison.lines, groups, strict=True)]
        self._groups = groups

    def plot(self, against: Literal["bytes", "rounds"] = "bytes") -> Plot:
        """The score of every run over MB sent, or over rounds."""
        runs = {
            f"{g.label} seed={r.config.seed}" if len(g.records) > 1 else g.label: (
                r.summary,
                r.rows,
            )
            for g in self._groups
            for r in g.records
        }
        return plot_scores(runs, against)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame; ConfigError where pandas is not installed."""
        return data_frame(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """A column: `runs["MB"]`."""
        return [row[column] for row in self.rows]

    def __repr__(self) -> str:
        head, lines = self._cells()
        widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
        table = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in (head, *lines)
        ]
        return "\n".join([self.answer, "", *table, *self._remarks()])

    def _repr_html_(self) -> str:
        head, lines = self._cells()
        return render("runs.html", answer=self.answer, plot=self.plot(), head=head, lines=lines,
                      remarks=self._remarks())  # fmt: skip

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        base, score, lines = self.comparison.base, self.comparison.score, self.comparison.lines
        shares = [f"of {base}"] if base else []
        head = ["", score, "density", "sent", *shares, "seeds"]
        return head, [
            [
                line.label,
                str(line.score or "-") + ("†" if line.is_local else ""),
                str(line.density or "-"),
                size(sent.mean) if (sent := line.spent["bytes"]) else "-",
                *(["-" if line.share is None else percent(line.share)] if shares else []),
                str(len(line.seeds)),
            ]
            for line in lines
        ]

    def _remarks(self) -> list[str]:
        local = "† no global model: mean over clients of their own models"
        marked = any(line.is_local for line in self.comparison.lines)
        warned = [f"warning: {text}" for text in self.comparison.warnings]
        return [*([local] if marked else []), *warned]


def compare(*runs: Result | str | Path, target: float | None = None, anyway: bool = False) -> Runs:
    """Runs side by side: which is best, at what cost.

    Seeds of one configuration are put together.

    ```python
    dense = fedsieve.run(method="fedavg")
    sparse = fedsieve.run(method="fediter_ht")
    fedsieve.compare(dense, sparse, "runs/another")
    ```

    Args:
        runs: results, or folders of finished runs.
        target: the score whose cost `comparison.reached` tells; else 95 % of the worst run's best.
        anyway: compare even if data or partitions differ.

    Raises:
        ConfigError: no runs, or runs on different data.
        DataError: a folder is not one of a finished run.
    """
    records = [_record(run) for run in runs]
    return Runs(compare_records(records, target, anyway=anyway), group(records)[0])


def _record(run: Result | str | Path) -> Record:
    if not isinstance(run, Result):
        return read_run(Path(run))
    path = run.folder or Path("in memory") / run.summary.method
    return Record(path, run.config, run.summary, run.rows, [])


def _row(line: Line, g: Group) -> dict[str, Any]:
    def mean(value: Figure | None) -> float | None:
        return None if value is None else value.mean

    sent = mean(line.spent["bytes"])
    return {
        "run": line.label,
        "method": line.method,
        "score": mean(line.score),
        "is_local": line.is_local,
        "spread": line.score.spread if line.score else None,
        "density": mean(line.density),
        "MB": None if sent is None else sent / 1e6,
        "share": line.share,
        "MACs": mean(line.spent["macs_ideal"]),
        "rounds": mean(line.spent["rounds"]),
        "seconds": sum(r.summary.seconds for r in g.records) / len(g.records),
        "seeds": len(line.seeds),
    }
