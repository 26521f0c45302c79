"""A deployment on loopback under random faults, for a given time: `make soak`, SOAK_MINUTES=60.

Jobs of 20 rounds follow each other on the same nodes, while processes are killed and stopped, runs
are ended behind the server's back and the port gets garbage. What must hold:

- a node whose answer was taken in time is counted in that round;
- a job ends in the model of a run in one process with the same clients lost, and where nobody was
  lost in that of the undisturbed run.

The log (on the screen and in FOLDER/soak.log) has a line for each fault and each job; the same
seed gives the same faults at the same moments, though processes answer them at their own pace.
"""

import argparse
import json
import os
import random
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

import fedsieve
from deployment import Deployment, child_of
from fedsieve.deploy.flower import private as flwr
from fedsieve.deploy.flower.server import SuperLink

NODE = Path(__file__).with_name("soak_node.py")
CLIENTS, ROUNDS, TIMEOUT = 3, 20, 60
PROXY, LINK = "deploy.proxy", "flower.private"
PAUSE = (3.0, 15.0)  # seconds between faults
PATIENCE = 900  # seconds for a job


class Soak:
    """One deployment, and who disturbs it."""

    def __init__(self, folder, seed):
        self.folder, self.random, self.start = folder, random.Random(seed), time.monotonic()
        self.deployment = Deployment(folder, method="spafl", clients=CLIENTS, rounds=ROUNDS)
        self.counts, self.troubles, self.outages = Counter(), [], []
        self.nodes, self.due, self.seen = {}, [], {}
        self.server = None
        self.file = (folder / "soak.log").open("a", buffering=1)

    def say(self, text):
        line = f"{time.monotonic() - self.start:7.1f} s  {text}"
        print(line, flush=True)  # noqa: T201 - a program
        self.file.write(line + "\n")

    def start_node(self, client):
        d = self.deployment
        self.nodes[client] = d.start(
            NODE, self.folder / f"answers-{client}.jsonl", "--server", f"localhost:{d.port}",
            "--client-id", client, "--certs", self.folder / "keys" / f"node-{client}",
            "--data", "job", "--store", self.folder / f"store-{client}", name=f"node-{client}",
        )  # fmt: skip

    def start_server(self):
        d = self.deployment
        is_begun = (d.run / "config.toml").exists()
        more = ["--resume"] if is_begun else []
        self.server = d.server("--round-timeout", TIMEOUT, *more, config=not is_begun)

    def some_node(self):
        alive = [client for client, process in self.nodes.items() if process.poll() is None]
        return self.random.choice(alive) if alive else None

    # Faults. Each says what it did; what undoes it is put into `due`.

    def kill_node(self):
        client = self.some_node()
        if client is None:
            return "no node is there"
        self.later(self.random.uniform(0, 5), self.start_node, client)
        self.end(self.nodes[client])
        return f"node {client} killed"

    def stop_node(self):
        client = self.some_node()
        if client is None:
            return "no node is there"
        return self.pause(self.nodes[client].pid, f"node {client}", 20)

    def kill_server(self):
        self.outage()
        self.end(self.server)
        self.start_server()
        return "server killed, --resume"

    def stop_server(self):
        return self.pause(self.server.pid, "server", 20)

    def kill_proxy(self):
        return self.kill_child(PROXY, "proxy")

    def kill_superlink(self):
        self.outage()
        return self.kill_child(LINK, "SuperLink")

    def stop_proxy(self):
        return self.pause(child_of(self.server, PROXY), "proxy", 8)

    def stop_superlink(self):
        return self.pause(child_of(self.server, LINK), "SuperLink", 8)

    def stop_run(self):
        self.outage()
        place = self.deployment.run / "deploy" / "sockets" / "superlink"
        try:
            with SuperLink(f"unix:{place}").control() as control:
                runs = control.ListRuns(flwr.ListRunsRequest(limit=1)).run_dict
                for run in runs:
                    control.StopRun(flwr.StopRunRequest(run_id=run))
        except httpx.HTTPError as error:
            return f"no run stopped ({type(error).__name__})"
        return f"run stopped ({len(runs)})"

    def garbage(self):
        for _ in range(5):
            self.send(self.random.randbytes(self.random.randrange(1, 5000)), is_held=False)
        return "garbage sent"

    def half_open(self):
        request = (
            b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nhalf"
        )
        for _ in range(20):
            self.send(request[: self.random.randrange(len(request))], is_held=True)
        return "20 half-open requests"

    FAULTS = (
        kill_node, kill_node, stop_node, kill_server, stop_server, kill_proxy, kill_superlink,
        stop_proxy, stop_superlink, stop_run, garbage, half_open,
    )  # fmt: skip

    def send(self, data, *, is_held):
        context = ssl.create_default_context(cafile=self.folder / "keys" / "server" / "ca.crt")
        try:
            peer = socket.create_connection(("localhost", self.deployment.port), 0.5)
            if is_held or self.random.random() < 0.5:
                peer = context.wrap_socket(peer, server_hostname="localhost")
            peer.sendall(data)
        except OSError:
            return
        self.later(60 if is_held else 0, peer.close)

    def pause(self, process, name, most):
        if process is None:
            return f"{name} is not there"
        seconds = self.random.uniform(1, most)
        if name in {"SuperLink", "server"}:
            self.outage(seconds)
        os.kill(process, signal.SIGSTOP)
        # By a timer: whatever else waits here, nobody is stopped for longer than is said.
        threading.Timer(seconds, self.go_on, (process,)).start()
        return f"{name} stopped for {seconds:.0f} s"

    def go_on(self, process):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)

    def kill_child(self, module, name):
        process = child_of(self.server, module)
        if process is None:
            return f"{name} is not there"
        os.kill(process, signal.SIGKILL)
        return f"{name} killed"

    def end(self, process):
        process.kill()
        process.wait()
        self.deployment.processes.remove(process)

    def later(self, seconds, what, *arguments):
        self.due.append((time.monotonic() + seconds, what, arguments))

    def outage(self, seconds=0.0):
        """Answers on their way may be lost without anybody's fault, and are asked for again."""
        self.outages.append((time.time(), time.time() + seconds))

    def do_what_is_due(self, *, all_of_it=False):
        now = time.monotonic()
        due = [item for item in self.due if all_of_it or item[0] <= now]
        self.due = [item for item in self.due if item not in due]
        for _, what, arguments in due:
            what(*arguments)

    def look(self):
        for row in self.deployment.rows():
            self.seen.setdefault((self.deployment.run.name, row["round"]), time.time())

    def play(self, name, *, is_disturbed):
        """One job; what was wrong with it."""
        d = self.deployment
        d.give(name)
        begun, fault_at = time.monotonic(), time.monotonic() + 5
        self.start_server()
        while self.server.poll() is None or self.server.returncode < 0:
            if time.monotonic() - begun > PATIENCE:
                self.troubles.append(f"{name}: not finished after {PATIENCE} s")
                break
            self.do_what_is_due()
            self.look()
            if is_disturbed and time.monotonic() > fault_at and self.server.poll() is None:
                fault = self.random.choice(self.FAULTS)
                self.counts[fault.__name__] += 1
                self.say(f"round {len(d.rows()) + 1:2d}: {fault(self)}")
                fault_at = time.monotonic() + self.random.uniform(*PAUSE)
            time.sleep(0.1)
        self.do_what_is_due()
        self.look()
        self.judge(name, time.monotonic() - begun)

    def judge(self, name, seconds):
        d = self.deployment
        if self.server.returncode:
            self.troubles.append(f"{name}: the server ended with {self.server.returncode}")
            self.say(d.log_of("server")[-2000:])
            return
        rows, result = d.rows(), json.loads((d.run / "result.json").read_text())
        lost = {row["round"]: row["lost"] for row in rows if row.get("lost")}
        self.counts["jobs"] += 1
        self.counts["rounds"] += len(rows)
        self.counts["left out"] += sum(map(len, lost.values()))
        wanted = self.undisturbed if not lost else d.here().summary.model_hash
        is_same = result["model_hash"] == wanted
        self.counts["jobs as undisturbed"] += not lost
        missed = self.missed(name, lost)
        self.troubles += [f"{name}: {each}" for each in missed]
        if not is_same:
            self.troubles.append(f"{name}: {result['model_hash']} is not {wanted}")
        verdict = "same model" if is_same else "ANOTHER MODEL"
        median = sorted(row["seconds"] for row in rows)[len(rows) // 2]
        self.say(
            f"{name}: {len(rows)} rounds in {seconds:.0f} s (median {median:.1f} s), left out "
            f"{lost or 'nobody'}, {verdict}{''.join(f'; {each}' for each in missed)}"
        )

    def missed(self, name, lost):
        """Answers that were taken in time and do not count."""
        job = (self.deployment.run / "deploy" / "job").read_text()
        found = []
        for number, clients in lost.items():
            end = self.seen[name, number]
            for client in clients:
                path = self.folder / f"answers-{client}.jsonl"
                lines = map(json.loads, path.read_text().splitlines()) if path.exists() else []
                taken = [
                    line["at"] for line in lines
                    if (line["job"], line["round"], line["taken"]) == (job, number, True)
                ]  # fmt: skip
                if taken and not any(a <= end and b >= taken[-1] - 1 for a, b in self.outages):
                    early = end - taken[-1]
                    found.append(f"round {number}: client {client} answered {early:.0f} s before")
        return found

    def run(self, minutes):
        end = time.monotonic() + 60 * minutes
        settings = self.deployment.settings
        self.undisturbed = fedsieve.run(**settings).summary.model_hash
        self.say(f"undisturbed: {self.undisturbed}; folder {self.folder}")
        with self.deployment:
            for client in range(CLIENTS):
                self.start_node(client)
            number = 0
            while time.monotonic() < end and len(self.troubles) < 3:
                number += 1
                self.play(f"job-{number}", is_disturbed=number > 1)
            self.do_what_is_due(all_of_it=True)
        faults = {f.__name__ for f in self.FAULTS}
        self.say("faults: " + ", ".join(f"{n} {self.counts[n]}" for n in sorted(faults)))
        rest = {n: c for n, c in self.counts.items() if n not in faults}
        self.say(", ".join(f"{n} {c}" for n, c in rest.items()))
        self.say("\n".join(self.troubles) or "every answer that came in time counted")
        return not self.troubles


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="a new folder; else a temporary one")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(not Soak(folder, given.seed).run(given.minutes))


if __name__ == "__main__":
    main()
