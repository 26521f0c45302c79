"""SpaFL runs of a library as small files, and as the tables of docs/results/spafl.md.

    fedsieve reproduce spafl_fashion_mnist --tier small --seeds 3 --root LIBRARY
    python benchmarks/studies/spafl_results.py LIBRARY results/spafl_fashion_mnist

Every run of the library, finished or not, gives one file: its options, and the evaluated rounds
with scores, densities and the bytes sent up to then. The tables are made of these files alone.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from fedsieve.core.options import spell
from fedsieve.jobs.config import make, read_toml
from fedsieve.metrics.rows import Row, read_row
from fedsieve.recipes.recipe import Recipe, find
from table import markdown, spread

FIELDS = (
    "local_accuracy",
    "seen_accuracy",
    "global_accuracy",
    "local_density",
    "layer_mean_density",
)
ROUNDS = (*range(20, 300, 20), 300, 350, 400, 450, 500)


def export(library: Path, target: Path) -> None:
    """Write the runs of a library that belong to a row of the recipes."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(library.glob("*/rounds.jsonl")):
        config = make(read_toml(path.parent / "config.toml"))
        rows = [read_row(line) for line in path.read_bytes().splitlines()]
        label = label_of({"method": config.method, **config.options})
        if label is None or not rows:
            continue
        record = {
            "row": label,
            "seed": config.seed,
            "asked_rounds": config.rounds,
            "played_rounds": len(rows),
            "options": {n: spell(v) for n, v in config.options.items()},
            "rounds": series(rows),
        }
        name = f"{label.replace(', ', '_').replace(' ', '_')}-{config.rounds}-{config.seed}.json"
        (target / name).write_text(json.dumps(record, indent=1) + "\n")


def label_of(found: dict[str, Any]) -> str | None:
    """The row of a recipe with these options, and the tier if they are its own."""
    for recipe in map(find, ("spafl_fashion_mnist", "spafl_ablations")):
        assert isinstance(recipe, Recipe)
        for row in recipe.rows:
            own = {f", {n}": tier.own[row.label] for n, tier in recipe.tiers.items()
                   if row.label in tier.own}  # fmt: skip
            for words, settings in {"": {}, **own}.items():
                config = make({**row.settings, **settings, "rounds": 1})
                if fits(found, {"method": config.method, **config.options}):
                    return row.label + words
    return None


def fits(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a run has the options of a row; compact training is the same up to rounding."""
    plain = {"share": True, "importance": True, "regulariser": "exp", "unmasked": ()}
    asked = {n: v for n, v in (plain | wanted).items() if n != "compact_training"}
    return all(found.get(n) == v for n, v in asked.items() if n in found)


def series(rows: list[Row]) -> list[dict[str, float | int]]:
    """Evaluated rounds with the bytes sent since the start."""
    up = down = paper = 0
    found = []
    for row in rows:
        up, down = up + row.up_bytes, down + row.down_bytes
        paper += row.up_paper_bytes + row.down_paper_bytes
        if row.local_accuracy is not None:
            values = {n: getattr(row, n) for n in FIELDS if getattr(row, n) is not None}
            found.append({"round": row.round, **{n: round(v, 5) for n, v in values.items()},
                          "up_bytes": up, "down_bytes": down, "paper_bytes": paper})  # fmt: skip
    return found


def tables(folder: Path) -> None:
    """Print mean accuracy, density and bytes of every row at some rounds."""
    runs: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    seeds: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        for point in record["rounds"]:
            key = record["row"], point["round"]
            if record["seed"] not in seeds[key]:
                seeds[key].add(record["seed"])
                runs[record["row"]][point["round"]].append(point)
    head = ["row", "round", "seeds", "personal accuracy", "density", "layer mean", "MB sent"]
    lines = [
        line(label, number, points[number])
        for label, points in runs.items()
        for number in ROUNDS
        if number in points
    ]
    print(markdown(head, lines))


def line(label: str, number: int, points: list[dict[str, Any]]) -> list[str]:
    """One line of the table."""
    accuracy = [100 * p["local_accuracy"] for p in points]
    density, layers = (
        f"{mean(p[n] for p in points):.3f}" if n in points[0] else "1"
        for n in ("local_density", "layer_mean_density")
    )
    sent = mean((p["up_bytes"] + p["down_bytes"]) / 1e6 for p in points)
    score = spread(accuracy, 1, " %")
    return [label, str(number), str(len(points)), score, density, layers, f"{sent:.2f}"]


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
    tables(Path(sys.argv[2]))
