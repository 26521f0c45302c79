"""What cutting pruned filters out of local training saves: time of a step of LeNet-5 and CNN-7.

    python benchmarks/speed/compact_training.py

A client of SpaFL (preset code, batches of 64) of which a share of the rows of every layer but the
last is pruned, trained with masks and in tensors without the pruned rows. LeNet-5 reads
Fashion-MNIST; CNN-7, where rows are pruned with their normalisation, CIFAR-10.
"""

import time
from dataclasses import replace

import torch

from fedsieve.core.keys import fold
from fedsieve.core.method import Batches
from fedsieve.jobs.config import make
from fedsieve.jobs.job import build
from fedsieve.methods.spafl import Local, SpaFL

KEY = fold(0, "bench")
SETTINGS = {
    "method": "spafl",
    "preset": "code",
    "clients": 100,
    "batch_size": 64,
    "lr": 1e-6,  # hardly moves: the pruned rows stay the same
}
MODELS = {
    "lenet5_caffe": {"dataset": "fashion_mnist", "input_scale": "raw255", "steps": 28},
    "cnn7": {"dataset": "cifar10", "prune_norms": True, "steps": 4},
}


def pruned(method: SpaFL, share: float) -> Local:
    """A client with `share` of the rows under their thresholds."""
    weights, thresholds = method.init_client(0, KEY).own
    for layer in method.masked[:-1]:
        size = weights[layer.weight].abs().flatten(1).mean(1)
        is_pruned = torch.arange(len(size)) < round(share * len(size))
        thresholds[layer.weight] = torch.where(is_pruned, 2 * size, size / 2)
    return Local(weights, thresholds)


def milliseconds(methods: tuple[SpaFL, SpaFL], own: Local, data: Batches) -> list[float]:
    """CPU time of one step of each method, tried in turn; the fastest of seven trials."""
    found: list[list[float]] = [[], []]
    for _ in range(7):
        for method, times in zip(methods, found, strict=True):
            before = time.process_time()
            trained = method.train(own, (), data, 1, KEY)
            times.append((time.process_time() - before) / trained.steps)
    return [1e3 * min(times) for times in found]


def main() -> None:
    torch.set_num_threads(1)
    for model, own_settings in MODELS.items():
        job = build(make({**SETTINGS, **own_settings, "model": model}))
        method, data = job.method, job.federation.batches(0)
        assert isinstance(method, SpaFL)
        compact = replace(method, compact_training=True)
        print(f"{model}\nrows pruned   masked   compact   ratio")
        for share in (0.0, 0.25, 0.5, 0.75, 0.9):
            own = pruned(method, share)
            whole, small = milliseconds((method, compact), own, data)
            print(f"{share:10.0%} {whole:7.1f}ms {small:7.1f}ms {whole / small:7.2f}", flush=True)


if __name__ == "__main__":
    main()
