"""Bits, error and speed of every compressor on one client's change of ResNet-18 (11.2M values).

Values   drawn from a Laplace law with a scale of its own for each tensor, like changes after local
         training; the broadcast that they are differences to is held by both ends
Bits     8 x the whole frame / values: header, steps, tables and codes together
Error    sum of squared errors / sum of squares; what EDEN's and QSGD's papers state
Speed    MB/s: 4 bytes x values / median CPU seconds, on one thread

    python benchmarks/speed/compressors.py [--repeats 5]
"""

import argparse
import time
import timeit
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from fedsieve.core.keys import fold
from fedsieve.core.message import Dense, Params
from fedsieve.core.options import read
from fedsieve.models.zoo.registry import read_model
from fedsieve.wire.codec import Coding, Decoder, Known, encode
from fedsieve.wire.compressors import KINDS
from fedsieve.wire.schema import schema_of

COMPRESSORS = (
    "sign", "eden(bits=1)", "eden(bits=2)", "eden(bits=3)", "eden(bits=4)", "uniform(step=3)",
    "uniform(step=2)", "uniform(step=1)", "uniform(step=0.25)", "qsgd(levels=4)", "groups(bits=2)",
    "groups(bits=4)", "groups(bits=8)", "int8", "top_k(0.01)", "top_k(0.01, values=eden(bits=4))",
    "ternary(0.01)", "rand_k(0.01)", "low_rank(rank=2)",
)  # fmt: skip
MOST_BITS = {"eden(bits=4)": 4.3, "groups(bits=4)": 4.3, "eden(bits=1)": 1.2, "sign": 1.2}
LEAST_SPEED = 200
QUANTISERS = ("sign", "eden", "uniform", "qsgd", "groups", "int8")


class Message(NamedTuple):
    weights: Dense


def changes() -> tuple[Params, Params]:
    """A broadcast, and weights after training."""
    rng = np.random.default_rng(0)
    module = read_model("resnet18").build((3, 32, 32), 10)
    before = {name: p.detach() for name, p in module.named_parameters()}
    moved = {
        name: torch.from_numpy((rng.laplace(size=p.shape) * rng.uniform(1e-4, 1e-2)).astype("f4"))
        for name, p in before.items()
    }
    return before, {name: p + moved[name] for name, p in before.items()}


def seconds(function: Callable[[], object], repeats: int) -> float:
    return float(np.median(timeit.repeat(function, "pass", time.process_time, repeats, 1)))


def main() -> None:
    """Print the table and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    down, up = map(Message, changes())
    count = sum(p.numel() for p in up.weights.values())
    decoder = Decoder()
    known = Known(frozenset({decoder.learn(schema_of(up)[0].packed())}))
    verdicts = []
    print(f"{'compressor':<34}{'bits':>7}{'error':>9}{'enc':>7}{'dec':>7}")
    for text in COMPRESSORS:
        coding = Coding(read(text, KINDS, "compression"), fold(0, "bench"), down)
        data = encode(up, known, coding).data
        arrived = decoder.decode(data, Message, base=down)
        lost = sum(float((up.weights[n] - w).square().sum()) for n, w in arrived.weights.items())
        whole = sum(float((w - down.weights[n]).square().sum()) for n, w in up.weights.items())
        writing = seconds(lambda coding=coding: encode(up, known, coding), repeats)  # type: ignore[misc]
        reading = seconds(lambda data=data: decoder.decode(data, Message, base=down), repeats)  # type: ignore[misc]
        bits, speed = 8 * len(data) / count, 4e-6 * count / writing
        speeds = f"{speed:>7.0f}{4e-6 * count / reading:>7.0f}"
        print(f"{text:<34}{bits:>7.2f}{lost / whole:>9.4f}{speeds}", flush=True)
        if text in MOST_BITS:
            is_met = bits <= MOST_BITS[text]
            verdicts.append((is_met, f"{text}: {bits:.2f} bits, at most {MOST_BITS[text]}"))
        if text.startswith(QUANTISERS):
            is_met = speed >= LEAST_SPEED
            verdicts.append((is_met, f"{text}: {speed:.0f} MB/s, at least {LEAST_SPEED}"))
    for is_met, said in verdicts:
        print("PASS " if is_met else "FAIL ", said)


if __name__ == "__main__":
    main()
