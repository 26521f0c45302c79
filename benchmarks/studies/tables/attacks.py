"""The tables of docs/results/attacks.md."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean

from fedsieve.recipes import results
from fedsieve.recipes.papers import attacks
from tables.common import Line, markdown


def attack_tables(name: str, tier: str, stored: Path) -> str:
    """A table for each rule: methods down, attacks across, points against the clean mean."""
    cells: dict[tuple[str, str, str], list[Line]] = {}
    for line in results.read(stored / name / f"{tier}.jsonl"):
        method, rule, attack = line["row"].split(", ")
        cells.setdefault((method, rule, attack), []).append(line)
    clean = {
        (method, line["seed"]): _attacked(line)
        for (method, rule, attack), lines in cells.items()
        for line in lines
        if (rule, attack) == ("mean", "no attack")
    }
    parts = []
    for rule in dict.fromkeys(rule for _, rule, _ in cells):
        rows = [
            [m, *(_attack_cell(m, cells.get((m, rule, a), []), clean) for a in attacks.ATTACKS)]
            for m in attacks.METHODS
            if any(key[:2] == (m, rule) for key in cells)
        ]
        parts.append(f"**`{rule}`**\n\n{markdown(['method', *attacks.ATTACKS], rows)}")
    return "\n\n".join(parts)


def _attacked(line: Line) -> float:
    is_local = line["row"].startswith("spafl")
    return float(line["figures"]["local_accuracy" if is_local else "global_accuracy"])


def _attack_cell(method: str, lines: list[Line], clean: Mapping[tuple[str, int], float]) -> str:
    """Mean accuracy and, seed by seed, the mean distance to the clean mean."""
    if not lines or any("stopped" in line for line in lines):
        return "stopped" if lines else ""
    scores = {line["seed"]: _attacked(line) for line in lines}
    lost = [x - clean[method, seed] for seed, x in scores.items() if (method, seed) in clean]
    seeds = f", {len(lines)} seeds" if len(lines) > 1 else ""
    score = f"{mean(scores.values()):.3f}"
    return f"{score} ({100 * mean(lost):+.1f}{seeds})" if lost else score


TABLES = {
    "attacks": partial(attack_tables, "attacks", "smoke"),
    "attacks_fashion_mnist": partial(attack_tables, "attacks_fashion_mnist", "small"),
}
