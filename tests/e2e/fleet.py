"""Time and memory of a deployment on this machine: `fleet.py --nodes 50`, `fleet.py --width 11000`.

`--width W` takes a network with two hidden layers of W neurons, 4 (W^2 + 76 W) bytes; 11000 are
about 490 MB. Memory is the largest resident set of each program since its start, and for all nodes
together the proportional set size, in which what processes share counts once.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployment import Deployment, child_of

GB = 10**6  # kB


def largest(process):
    """The largest resident set, in kB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def proportional(process):
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=1200)
    given = parser.parse_args()
    hidden = [given.width, given.width] if given.width > 100 else [given.width]
    settings = {
        "method": "fedavg", "clients": given.nodes, "cohort": given.nodes, "rounds": given.rounds,
        "model": f"mlp(hidden={hidden})", "eval_every": given.rounds, "steps": 1, "epochs": None,
    }  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    with Deployment(folder, **settings) as deployment:
        start = time.monotonic()
        server = deployment.server("--round-timeout", given.timeout)
        nodes = [deployment.node(client) for client in range(given.nodes)]
        figures, first = {}, 0.0
        while server.poll() is None:
            with suppress(OSError, StopIteration):  # a program that has not begun, or has ended
                figures = {
                    "server_gb": largest(server.pid) / GB,
                    "superlink_gb": largest(child_of(server, "flower.private")) / GB,
                    "proxy_gb": largest(child_of(server, "deploy.proxy")) / GB,
                    "node_gb": max(largest(node.pid) for node in nodes) / GB,
                    "all_nodes_gb": sum(proportional(node.pid) for node in nodes) / GB,
                }
            if deployment.rows() and not first:
                first = time.monotonic() - start
            time.sleep(1)
        seconds = [row["seconds"] for row in deployment.rows()]
        figures |= {
            "nodes": given.nodes, "rounds": len(seconds), "first_row_after_s": first,
            "median_round_s": statistics.median(seconds), "longest_round_s": max(seconds),
            "lost": [row["lost"] for row in deployment.rows() if row.get("lost")],
        }  # fmt: skip
        traffic = deployment.run / "traffic.json"
        figures["tcp"] = json.loads(traffic.read_text())["tcp"] if traffic.exists() else None
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
        if server.returncode:
            sys.exit(deployment.logs()[-5000:])


if __name__ == "__main__":
    main()
