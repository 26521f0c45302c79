"""The tables of docs/results/spafl.md."""

import re
from pathlib import Path
from statistics import mean

from fedsieve.recipes import results
from fedsieve.recipes.recipe import find
from tables.common import Line, at, by_row, markdown, sent_mb, spread

ROUNDS = (*range(20, 300, 20), 300, 350, 400, 450, 500)
END = 100  # round of the tier `small`


def _spafl(stored: Path) -> dict[str, list[Line]]:
    """Runs by row; those of more rounds stand in for a seed that the tier `small` has not."""
    folder = stored / "spafl_fashion_mnist"
    runs = by_row([line for tier in ("small", "full") for line in results.read(
        folder / f"{tier}.jsonl")])  # fmt: skip
    medium = by_row(results.read(folder / "medium.jsonl"))
    ablations = by_row(results.read(stored / "spafl_ablations/small.jsonl"))
    return runs | {f"{row}, medium": lines for row, lines in medium.items()} | ablations


def spafl_seeds(stored: Path) -> str:
    """Accuracy at the end of the tier `small`, seed by seed."""
    runs = _spafl(stored)
    means, rows = {}, {}
    dense = _first_mb(runs["FedAvg"])
    for row in (r.label for r in find("spafl_fashion_mnist").rows if r.label in runs):
        points = {x["seed"]: p for x in runs[row] if (p := at(x, END))}
        means[row] = mean(p["local_accuracy"] for p in points.values())
        scores = [_per_cent([points[s]], "local_accuracy") if s in points else "" for s in range(3)]
        density = mean(p.get("local_density", 1) for p in points.values())
        size = mean(map(sent_mb, points.values()))
        share = "" if row == "FedAvg" else f"{100 * size / dense:.2f} %"
        rows[row] = [
            re.sub("(code|paper)$", r"`\1`", row),
            *scores,
            f"{100 * means[row]:.1f} %",
            "1" if density == 1 else f"{density:.3f}",
            f"{size:.2f}" if size < END else f"{size:.0f}",
            share.replace("0.00 %", ""),
        ]
    head = [f"row, round {END}", "seed 0", "seed 1", "seed 2", "mean", "density", "MB sent",
            "of FedAvg's"]  # fmt: skip
    return markdown(head, [rows[row] for row in sorted(rows, key=lambda row: -means[row])])


def spafl_rounds(stored: Path) -> str:
    """Mean accuracy, density and bytes of every row at some rounds."""
    rows = []
    for row, lines in sorted(_spafl(stored).items()):
        evaluated = {n: [p for line in lines if (p := at(line, n))] for n in ROUNDS}
        rows += [_spafl_row(row, str(n), points) for n, points in evaluated.items() if points]
    head = ["row", "round", "seeds", "personal accuracy", "density", "layer mean", "MB sent"]
    return markdown(head, rows)


def _spafl_row(row: str, number: str, points: list[Line]) -> list[str]:
    accuracy = spread([100 * p["local_accuracy"] for p in points], 1, " %")
    densities = [
        f"{mean(p[name] for p in points):.3f}" if name in points[0] else "1"
        for name in ("local_density", "layer_mean_density")
    ]
    sent = f"{mean(map(sent_mb, points)):.2f}"
    return [row, number, str(len(points)), accuracy, *densities, sent]


def spafl_tiers(stored: Path) -> str:
    """The longer runs beside the paper's row: their best rounds and their ends."""
    runs = _spafl(stored)
    columns = [
        [line["rounds"] for line in runs[row] if at(line, last)]
        for row, last in (
            ("SpaFL, code", 500), ("SpaFL, outputs kept", 200), ("SpaFL, outputs kept, medium", 200)
        )
    ]  # fmt: skip
    best = [[max(points, key=_accuracy) for points in column] for column in columns]
    ends = [[points[-1] for points in column] for column in columns]
    rounds = [" / ".join(str(point["round"]) for point in column) for column in best]
    scores = [
        f"{_per_cent(column, 'local_accuracy')} ({'round ' if len(column) == 1 else ''}{number})"
        for column, number in zip(best, rounds, strict=True)
    ]
    ours, dense = (_first_mb(runs[row]) / END for row in ("SpaFL, code", "FedAvg"))
    share = f"{ours:.3f} MB a round in the first {END}: {100 * ours / dense:.1f} %"
    rows = [
        ["personal accuracy, best round", "90.31 %", *scores],
        ["density then", "5.36 %", *(_per_cent(x, "local_density") for x in best)],
        ["accuracy at the end", "", *(_per_cent(x, "local_accuracy") for x in ends)],
        ["density at the end", "", *(_per_cent(x, "local_density") for x in ends)],
        ["communication, 32 T n_tau (K + K)", "0.1856 Gbit at T = 500", "the same by formula",
         "0.1824 Gbit at T = 500", "the same"],
        [f"true bytes against FedAvg's {dense:.1f} MB a round", "", share, "the same", "the same"],
    ]  # fmt: skip
    head = ["figure", "paper", "preset `code`, 500 rounds", "outputs kept, 200 rounds",
            "outputs kept, tier `medium`"]  # fmt: skip
    return markdown(head, rows)


def _accuracy(point: Line) -> float:
    return float(point["local_accuracy"])


def _per_cent(points: list[Line], name: str) -> str:
    return " / ".join(f"{100 * point[name]:.1f}" for point in points) + " %"


def _first_mb(lines: list[Line]) -> float:
    """What was sent up to the end of the tier `small`."""
    return mean(sent_mb(point) for line in lines if (point := at(line, END)))


def spafl_ablations(stored: Path) -> str:
    """Rows at the end of the tier `small`, seed 0."""
    names = {
        "SpaFL, code": "`code`",
        "no importance update": "`code`, no importance update",
        "inverse regulariser": "`code`, inverse regulariser",
        "SpaFL, paper": "`paper`",
        "paper, unavailable clients": "`paper`, unavailable clients",
        "paper, whole rows": "`paper`, whole rows (structured)",
    }
    runs, rows = _spafl(stored), []
    for row, label in names.items():
        (point,) = (p for x in runs[row] if x["seed"] == 0 and (p := at(x, END)))
        _, _, _, accuracy, density, layers, _ = _spafl_row(row, "", [point])
        rows.append([label, accuracy, density, layers, f"{sent_mb(point):.1f}"])
    head = [f"row, round {END}, seed 0", "accuracy", "density", "layer mean", "MB sent"]
    return markdown(head, rows)


TABLES = {
    "spafl_ablations": spafl_ablations,
    "spafl_rounds": spafl_rounds,
    "spafl_seeds": spafl_seeds,
    "spafl_tiers": spafl_tiers,
}
