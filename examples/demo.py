"""Dense against sparse on embedded data: FedAvg and FedIter-HT with the same clients and rounds.

Twenty clients hold label-skewed parts of the 8x8 digits that come with scikit-learn, ten of them
train in a round. FedIter-HT keeps 15 % of the weights at all times, so both directions shrink.
"""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import fedsieve
from fedsieve.cli.progress import Lines, Live
from fedsieve.ledger.rows import Summary

METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "fediter_ht": {"target_density": 0.15}}
SETTINGS: dict[str, Any] = {
    "dataset": "digits",
    "partition": "dirichlet(0.5)",
    "clients": 20,
    "cohort": 10,
    "epochs": 4,
    "batch_size": 32,
    "lr": 0.015,
    "optimiser": "adam",
}


def main(rounds: int = 25, runs: Path = Path("runs")) -> None:
    """Run both methods, each in a folder of its own, and print one table."""
    console = Console()
    folder = _fresh(runs)
    summaries = []
    for method, options in METHODS.items():
        console.print(f"\n[bold]{method}[/bold]")
        live = Live()
        with live if live.is_terminal else Lines() as watcher:
            result = fedsieve.run(
                method=method,
                rounds=rounds,
                schedule=f"cosine(until={rounds}, floor=0.1)",
                out=folder / method,
                watcher=watcher,
                **SETTINGS,
                **options,
            )
        summaries.append(result.summary)
    console.print()
    console.print(_table(summaries))
    console.print(f"\nEvery round and message: {folder}/<method>/*.jsonl", highlight=False)
    console.print(f"Run again: fedsieve run {folder}/fediter_ht/config.toml", highlight=False)


def _fresh(runs: Path) -> Path:
    """The first folder demo-1, demo-2, ... that is not there yet."""
    number = 1
    while (runs / f"demo-{number}").exists():
        number += 1
    return runs / f"demo-{number}"


def _table(summaries: list[Summary]) -> Table:
    table = Table(title="digits, 20 clients, dirichlet(0.5), 10 a round", box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    for heading in ("global", "local", "density", "MB up", "down", "bytes", "MACs", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    first = summaries[0].up_bytes + summaries[0].down_bytes
    for one in summaries:
        table.add_row(
            one.method,
            f"{one.global_accuracy:.3f}",
            f"{one.local_accuracy:.3f}",
            f"{one.density:.2f}",
            f"{one.up_bytes / 1e6:.2f}",
            f"{one.down_bytes / 1e6:.2f}",
            f"{(one.up_bytes + one.down_bytes) / first:.0%}",
            f"{one.flops_ideal:.2g}",
            f"{one.seconds:.0f}",
        )
    table.caption = (
        "global, local: accuracy on all test data, and mean over clients\n"
        "bytes: both directions against FedAvg\n"
        "MACs: of training, without those of weights that are zero"
    )
    table.caption_justify = "left"
    return table


if __name__ == "__main__":
    main()
