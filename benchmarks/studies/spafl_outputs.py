"""Which output neurons a SpaFL run has pruned, and what that does to their classes.

    python benchmarks/studies/spafl_outputs.py RUN

Reads the last checkpoint of a run folder (method spafl, last layer fc2) and evaluates every
client's own model on its own test shard.
"""

import sys
from pathlib import Path

import msgspec
import torch

from fedsieve.engine import blob
from fedsieve.engine.checkpoint import Saved
from fedsieve.jobs.config import make, read_toml
from fedsieve.jobs.job import build
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
    answers, pruned = torch.zeros(outputs, outputs), torch.zeros(outputs)
    personal = []
    for client, version in saved.versions["states"].items():
        path = run / "clients" / "states" / f"{int(client):07d}-{version:07d}.safetensors"
        state: State = blob.read(State, path)
        model = method.model(server, state)
        assert model is not None
        pruned += (model[LAST].abs().sum(1) == 0).float()
        own = torch.zeros(outputs, outputs)
        for batch in job.federation.scored_batches(int(client)):
            said = method.predict(model, batch.x).argmax(1)
            own.index_put_((batch.y, said), torch.ones(len(said)), accumulate=True)
        answers += own
        personal.append(float(own.diagonal().sum() / own.sum()))
    print(f"round {saved.done}: personal accuracy {sum(personal) / len(personal):.4f} "
          f"of {len(personal)} clients that have trained")  # fmt: skip
    share = 100 * answers / answers.sum(1, keepdim=True)
    print("| class | server's threshold | pruned on | right | most frequent other answer |")
    print("|---|---|---|---|---|")
    for k in range(outputs):
        others = share[k].clone()
        others[k] = -1
        wrong = int(others.argmax())
        print(f"| {k} | {server.thresholds[LAST][k]:.3f} | {pruned[k]:.0f} clients | "
              f"{share[k, k]:.1f} % | {wrong} ({others[wrong]:.1f} %) |")  # fmt: skip


if __name__ == "__main__":
    main()
