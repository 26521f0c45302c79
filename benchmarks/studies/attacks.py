"""The recipe `attacks` as tables: methods against attacks for each rule of aggregation.

    cd benchmarks/studies; results=../../results
    python attacks.py $results/attacks.jsonl                     # runs what is missing
    python attacks.py $results/attacks.jsonl --rules mean agreement --methods fedavg
    python attacks.py $results/attacks_fashion_mnist.jsonl --recipe attacks_fashion_mnist
    python attacks.py $results/attacks.jsonl --page ../../docs/results/attacks.md

Lines are appended as runs finish, so that a stopped table goes on.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import fedsieve
from fedsieve.core.errors import RoundError
from fedsieve.recipes.papers import attacks
from fedsieve.recipes.recipe import Recipe, find
from table import append_lines, markdown

Line = dict[str, Any]


def run(job: tuple[str, str, int]) -> Line:
    """One line of the file; a run that was stopped has no accuracy."""
    name, label, seed = job
    recipe = _recipe(name)
    row = next(r for r in recipe.rows if r.label == label)
    method, rule, attack = label.split(", ")
    line: Line = {"method": method, "rule": rule, "attack": attack, "seed": seed}
    settings = recipe.settings(row, next(iter(recipe.tiers)))
    try:
        last = fedsieve.run(seed=seed, progress=False, **settings).rows[-1]
    except RoundError as error:
        return line | {"accuracy": None, "stopped": str(error).partition(".")[0]}
    accuracy = last.local_accuracy if method == "spafl" else last.global_accuracy
    return line | {"accuracy": accuracy, "density": last.density}


def tables(lines: list[Line]) -> str:
    """A table for each rule: methods down, attacks across, points against the clean mean."""
    clean = {
        (x["method"], x["seed"]): x["accuracy"]
        for x in lines
        if (x["rule"], x["attack"]) == ("mean", "no attack")
    }
    parts = []
    for rule in dict.fromkeys(x["rule"] for x in lines):
        ours = [x for x in lines if x["rule"] == rule]
        cells = [
            [method, *(_cell(ours, method, attack, clean) for attack in attacks.ATTACKS)]
            for method in attacks.METHODS
            if any(x["method"] == method for x in ours)
        ]
        parts.append(f"**`{rule}`**\n\n{markdown(['method', *attacks.ATTACKS], cells)}")
    return "\n\n".join(parts)


def _cell(lines: list[Line], method: str, attack: str, clean: dict[tuple[str, int], float]) -> str:
    """Mean accuracy and, seed by seed, the mean distance to the clean mean."""
    here = [x for x in lines if (x["method"], x["attack"]) == (method, attack)]
    if not here or any(x["accuracy"] is None for x in here):
        return "stopped" if here else ""
    score = mean(x["accuracy"] for x in here)
    lost = [x["accuracy"] - clean[method, x["seed"]] for x in here if (method, x["seed"]) in clean]
    seeds = f", {len(here)} seeds" if len(here) > 1 else ""
    return f"{score:.3f} ({100 * mean(lost):+.1f}{seeds})" if lost else f"{score:.3f}"


def _recipe(name: str) -> Recipe:
    recipe = find(name)
    if not isinstance(recipe, Recipe):
        raise SystemExit(f"{name} has no rows.")
    return recipe


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", default="attacks")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    parser.add_argument("--rules", nargs="*", default=list(attacks.RULES))
    parser.add_argument("--methods", nargs="*", default=list(attacks.METHODS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    text = given.out.read_text() if given.out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    if given.page:
        first, last = (f"<!-- {given.out.stem}{end} -->" for end in ("", " end"))
        before, _, rest = given.page.read_text().partition(first)
        _, _, after = rest.partition(last)
        given.page.write_text(f"{before}{first}\n\n{tables(lines)}\n\n{last}{after}")
        return
    done = {(x["method"], x["rule"], x["attack"], x["seed"]) for x in lines}
    labels = [tuple(row.label.split(", ")) for row in _recipe(given.recipe).rows]
    missing = [
        (given.recipe, attacks.label(method, rule, attack), seed)
        for seed in given.seeds
        for method, rule, attack in labels
        if method in given.methods and rule in given.rules
        if (method, rule, attack, seed) not in done
    ]
    append_lines(given.out, run, missing, given.workers)


if __name__ == "__main__":
    main()
