"""Is every method still the same, to the bit? Hashes of small runs, frozen and compared.

    python tools/same_bits.py FILE            # writes FILE, or compares with it if it is there
    python tools/same_bits.py FILE --methods fedavg spafl

Every method, exact and rounded to 8 bits, in one process, in a pool, and resumed from a checkpoint:
the hash of the model, of all rows but their seconds, and of two rounds of frames. The hashes belong
to one machine and one version of torch, so compare on the machine that froze them.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fedsieve
import fedsieve.methods  # registers them
from fedsieve.core.method import registered

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from small import SETTINGS as SMALL
from small import StopAfter

SETTINGS: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "lr"},
    "save_messages": (1, 3),
    "progress": False,
}
WIRES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "int8": {"wire": "int8", "error_feedback": True},
}


def runs(method: str, wire: str, folder: Path) -> dict[str, str]:
    """Hashes of one method on one wire, by how it was run."""
    given = {**SETTINGS, **WIRES[wire], "method": method, "checkpoint_every": 1}
    results = {
        "inline": fedsieve.run(**given, out=folder / "inline"),
        "pool": fedsieve.run(**given, out=folder / "pool", workers=2),
    }
    fedsieve.run(**given, out=folder / "resumed", watcher=StopAfter(2))
    results["resumed"] = fedsieve.run(out=folder / "resumed", resume=True, progress=False)
    return {how: digest(result, folder / how) for how, result in results.items()}


def digest(result: fedsieve.Result, folder: Path) -> str:
    """One hash of a run's model, rows and frames."""
    rows = []
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        row = {name.replace("flops_", "macs_"): value for name, value in json.loads(line).items()}
        rows.append({name: row[name] for name in sorted(row) if name != "seconds"})
    state = hashlib.blake2b(json.dumps(rows).encode(), digest_size=12)
    state.update(str(result.summary.model_hash).encode())
    for path in sorted((folder / "messages").glob("*")):
        state.update(path.read_bytes())
    return state.hexdigest()


def main() -> None:
    """Freeze or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", nargs="*", default=list(registered()))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, str] = {}
    for method in given.methods:
        for wire in WIRES:
            with tempfile.TemporaryDirectory() as folder:
                hashes = runs(method, wire, Path(folder))
            found |= {f"{method} {wire} {how}": value for how, value in hashes.items()}
        print(method, len(set(hashes.values())) == 1, flush=True)
    if not given.file.exists():
        given.file.write_text(json.dumps(found, indent=1))
        return
    frozen = json.loads(given.file.read_text())
    different = [name for name, value in found.items() if frozen.get(name) != value]
    print(f"{len(found) - len(different)} of {len(found)} equal")
    if different:
        sys.exit("different: " + ", ".join(different))


if __name__ == "__main__":
    main()
