"""`fedsieve demo`: dense, quantised and sparse methods on embedded data, side by side."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedsieve.cli.compare import console
from fedsieve.core.errors import ConfigError, FedsieveError, unknown
from fedsieve.engine.executors.cores import cores
from fedsieve.engine.interrupt import Interrupt

if TYPE_CHECKING:
    from fedsieve.report.watch import Follower, Seen

SYSTEMS: dict[str, tuple[str, dict[str, str]]] = {
    "fedavg": ("FedAvg", {}),
    "fedavg_int8": (
        "FedAvg at 8 bits",
        {"method": "fedavg", "wire": "int8", "error_feedback": "true"},
    ),
    "fedsparse": ("FedSparse", {}),
    "flops_pa": ("FLoPS-PA", {}),
    "vardrop": ("Variational dropout", {}),
    "pfnm": ("PFNM", {}),
    "spafl": ("SpaFL", {}),
}
GRACE_SECONDS = 5.0  # for processes that were told to end at once
POLL_SECONDS = 0.15
REPORT = "report.html"
NOTE = (
    "MB: all messages, up and down. model kB: the finished model as one download, cut to what is "
    "in use and coded like a message."
)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table; figures are missing where a run failed before its first evaluation."""

    name: str
    about: str
    state: str  # finished, or what happened instead
    folder: str
    accuracy: float | None = None
    is_local: bool = False  # no global model: the mean over clients of their own models
    density: float | None = None
    sent_bytes: int | None = None  # all messages, up and down
    share: float | None = None  # of FedAvg's bytes
    model_bytes: float | None = None  # of the finished model as one message
    seconds: float | None = None


class Outcome(msgspec.Struct, frozen=True):
    """All that the demo found."""

    answer: str
    lines: list[Line]
    folder: str
    report: str | None


def demo(
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of every run (their default).", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="All randomness follows from it.", min=0)] = 0,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help=f"Of {', '.join(SYSTEMS)}.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs side by side (as many as cores).", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder in which demo-1, demo-2, ... are made.")] = Path(
        "runs"
    ),
    json: Annotated[bool, typer.Option("--json", help="The table as one JSON line.")] = False,
) -> None:
    """Run seven methods on embedded data and compare them.

    FedAvg, FedAvg at 8 bits, FedSparse, FLoPS-PA, variational dropout, PFNM and SpaFL, each as it
    comes, on the digits of scikit-learn split over 20 clients. Ends with one table and a report
    page; every run stays in its folder. Ctrl-C keeps what is there.

    ```
    fedsieve demo
    fedsieve demo --only fedavg,spafl --rounds 10
    ```

    Exit codes: 0 all finished, 1 some failed, 130 stopped.
    """
    names = _chosen(only)
    folder = _fresh(out)
    given = {"seed": str(seed)} | ({} if rounds is None else {"rounds": str(rounds)})
    jobs = [Job(name, folder / name, SYSTEMS[name][1], given) for name in names]
    side_by_side = min(workers or cores(), len(jobs))
    typer.echo(f"{len(jobs)} runs, {side_by_side} at a time, in {folder}", err=True)
    stopped = _work(jobs, side_by_side)
    outcome = _outcome(jobs, folder)
    if json:
        typer.echo(msgspec.json.encode(outcome).decode())
    else:
        _print(outcome)
    if stopped:
        raise typer.Exit(130)
    if any(line.state != "finished" for line in outcome.lines):
        raise typer.Exit(1)


class Job:
    """One `fedsieve run` in a process of its own, followed by the files it writes."""

    def __init__(
        self, name: str, folder: Path, settings: dict[str, str], given: dict[str, str]
    ) -> None:
        self.name, self.folder = name, folder
        self._settings = {"method": name, **settings, **given}
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the job
        self._follower: Follower | None = None
        self.is_told = False

    @property
    def state(self) -> str:
        """`waiting`, `running` or `ended`."""
        if self._process is None:
            return "waiting"
        return "running" if self._process.poll() is None else "ended"

    def start(self) -> None:
        command = [sys.executable, "-m", "fedsieve", "run", "--quiet", "--out", str(self.folder)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        # A session of its own: Ctrl-C reaches the children through `stop` alone.
        self._process = subprocess.Popen(  # noqa: S603 - this program
            command, stdout=subprocess.DEVNULL, stderr=self._said, start_new_session=True
        )

    def stop(self) -> None:
        """Ask the run to end after its round."""
        if self._process is not None and not self.is_told:
            self.is_told = True
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process, at once if it must be."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def look(self) -> "Seen":
        from fedsieve.report.watch import Follower

        self._follower = self._follower or Follower(self.folder)
        return self._follower.look()

    def complaint(self) -> str:
        """Why there is no whole result, in a line."""
        if self._process is None or self.is_told:
            return "stopped"
        self._said.seek(0)
        words = self._said.read().decode(errors="replace").strip()
        if "error: " in words:
            return "failed: " + " ".join(words.rpartition("error: ")[2].split())
        code = self._process.returncode
        return f"failed: {words.splitlines()[-1] if words else f'exit code {code}'}"


def _work(jobs: Sequence[Job], workers: int) -> bool:
    """Run all jobs, some at a time; returns whether they were stopped."""
    try:
        with Interrupt() as interrupt, _shown(jobs) as show:
            while True:
                for job in jobs:
                    if interrupt.is_asked:
                        job.stop()
                    elif job.state == "waiting" and _count(jobs, "running") < workers:
                        job.start()
                show()
                is_over = interrupt.is_asked or not _count(jobs, "waiting")
                if is_over and not _count(jobs, "running"):
                    return interrupt.is_asked
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        for job in jobs:
            job.is_told = True
        return True
    finally:
        for job in jobs:
            job.kill()


def _count(jobs: Sequence[Job], state: str) -> int:
    return sum(job.state == state for job in jobs)


@contextmanager
def _shown(jobs: Sequence[Job]) -> Iterator[Callable[[], None]]:
    """How to show where all runs are: a live table on a terminal, a line for each that ends."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda: live.update(_live(jobs), refresh=True)
        return
    told = set[str]()

    def tell() -> None:
        for job in jobs:
            if job.state == "ended" and job.name not in told:
                told.add(job.name)
                console.print(f"{len(told)}/{len(jobs)} {job.name}: {_now(job)}", markup=False)

    yield tell


def _live(jobs: Sequence[Job]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for job in jobs:
        seen = job.look() if job.state != "waiting" else None
        done, total = (seen.done, seen.total or 1) if seen else (0, 1)
        bar = ProgressBar(total=total, completed=done, width=24, finished_style="green")
        words = job.state if seen is None else f"{done}/{seen.total or '?'}"
        table.add_row(job.name, bar, words, _now(job) if seen else "")
    return table


def _now(job: Job) -> str:
    """The newest figures of a run, in words."""
    seen = job.look()
    if job.state == "ended" and seen.summary is None:
        return job.complaint()
    scores = [row for row in seen.rows if row.local_accuracy is not None]
    if not scores:
        return "starting"
    last = scores[-1]
    sent = sum(row.sent_bytes for row in seen.rows)
    return f"{last.main_score:.3f}{'†' if last.is_local else ' '} {sent / 1e6:6.2f} MB"


def _outcome(jobs: Sequence[Job], folder: Path) -> Outcome:
    from fedsieve.jobs.api import one_thread
    from fedsieve.report import page
    from fedsieve.report.answer import Candidate, answer

    with one_thread():
        lines = [_line(job) for job in jobs]
    whole = next((x.sent_bytes for x in lines if x.name == "fedavg" and x.state == "finished"), 0)
    if whole:
        lines = [
            msgspec.structs.replace(x, share=None if x.sent_bytes is None else x.sent_bytes / whole)
            for x in lines
        ]
    known = [
        Candidate(x.about, x.accuracy, x.sent_bytes, x.is_local)
        for x in lines
        if x.state == "finished" and x.accuracy is not None and x.sent_bytes is not None
    ]
    report = None
    if kept := [Path(x.folder) for x in lines if x.sent_bytes is not None]:
        report = str(page.write(kept, folder / REPORT))
    told = answer(known, "FedAvg", "accuracy") if known else "No run was finished."
    return Outcome(told, lines, str(folder), report)


def _line(job: Job) -> Line:
    from fedsieve.export.size import download_bytes
    from fedsieve.jobs.library import read_run

    about, folder = SYSTEMS[job.name][0], str(job.folder)
    try:
        summary = read_run(job.folder).summary
        model = download_bytes(job.folder) if summary.rounds else None
    except FedsieveError:
        return Line(name=job.name, about=about, state=job.complaint(), folder=folder)
    return Line(
        name=job.name,
        about=about,
        state=summary.status if summary.status == "finished" else f"stopped {summary.status}",
        folder=folder,
        accuracy=summary.main_score,
        is_local=summary.is_local,
        density=summary.density,
        sent_bytes=summary.sent_bytes,
        model_bytes=model,
        seconds=summary.seconds,
    )


def _print(outcome: Outcome) -> None:
    from fedsieve.report.answer import percent

    page = console()
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("accuracy", "density", "MB", "of FedAvg", "model kB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in outcome.lines:
        cells = ["-"] * 5
        if line.accuracy is not None and line.sent_bytes is not None:
            cells = [
                f"{line.accuracy:.3f}" + ("†" if line.is_local else " "),
                f"{line.density:.3f}",
                f"{line.sent_bytes / 1e6:.2f}",
                "-" if line.share is None else percent(line.share),
                "-" if line.model_bytes is None else f"{line.model_bytes / 1e3:.1f}",
            ]
        table.add_row(line.about, *cells)
    page.print(table)
    page.print(outcome.answer, markup=False, highlight=False)
    for line in outcome.lines:
        if line.state != "finished":
            page.print(f"{line.about}: {line.state}", markup=False, highlight=False, style="red")
    if any(line.is_local for line in outcome.lines):
        page.print("† no global model: mean over clients of their own models", style="dim")
    page.print(NOTE, style="dim", highlight=False)
    if outcome.report is not None:
        typer.echo(f"report: {outcome.report}")
    typer.echo(f"runs:   {outcome.folder}/*/   (fedsieve compare {outcome.folder}/*/)")


def _chosen(only: str | None) -> list[str]:
    names = list(SYSTEMS) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError(unknown("part of the demo", name, list(SYSTEMS)))
    return list(dict.fromkeys(names))


def _fresh(out: Path) -> Path:
    """The first of demo-1, demo-2, ... that is not there yet."""
    number = 1
    while True:
        folder = out / f"demo-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not out.is_dir():
                raise
            number += 1
        else:
            return folder
