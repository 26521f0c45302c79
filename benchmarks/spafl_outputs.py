"""Which output neurons a SpaFL run has pruned, and what that does to their classes.

    python benchmarks/spafl_outputs.py RUN

Reads the last checkpoint of a run folder (method spafl, last layer fc2) and evaluates every
client's own model on its own test shard.
"""

import sys
from pathlib import Path

import msgspec
import torch

from fedsieve.config import make, read_toml
from fedsieve.engines import blob
from fedsieve.engines.folder import Saved
from fedsieve.job import build
from fedsieve.methods.spafl import Server, SpaFL, State

LAST = "fc2.weight"


def main() -> None:
    torch.set_num_threads(1)
    run = Path(sys.argv[1])
    job = build(make(read_toml(run / "config.toml")))
    method, outputs = job.method, job.dataset.num_outputs
    assert isinstance(method, SpaFL)
    checkpoint = max(p for p in (run / "checkpoints").iterdir() if p.name.isdigit())
    saved = msgspec.msgpack.decode((checkpoint / "position.msgpack").read_bytes(), type=Saved)
    server: Server = blob.read(Server, checkpoint / "server.safetensors")
    right, count, pruned = torch.zeros(3, outputs)
    personal = []
    for client, version in saved.versions["states"].items():
        path = run / "clients" / "states" / f"{int(client):07d}-{version:07d}.safetensors"
        state: State = blob.read(State, path)
        model = method.deploy(server, state)
        assert model is not None
        pruned += (model[LAST].abs().sum(1) == 0).float()
        hits, classes = [], []
        for batch in job.federation.scored_batches(int(client)):
            hits.append((method.predict(model, batch.x).argmax(1) == batch.y).float())
            classes.append(batch.y)
        hit, y = torch.cat(hits), torch.cat(classes)
        right.index_add_(0, y, hit)
        count.index_add_(0, y, torch.ones(len(y)))
        personal.append(float(hit.mean()))
    print(f"round {saved.done}: personal accuracy {sum(personal) / len(personal):.4f} "
          f"of {len(personal)} clients that have trained")  # fmt: skip
    print("| class | server's threshold | pruned on | accuracy |\n|---|---|---|---|")
    for k in range(outputs):
        print(f"| {k} | {server.thresholds[LAST][k]:.3f} | {pruned[k]:.0f} clients | "
              f"{100 * right[k] / count[k]:.1f} % |")  # fmt: skip


if __name__ == "__main__":
    main()
