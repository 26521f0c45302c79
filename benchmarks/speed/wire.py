"""How close frames are to the information limit, how fast, and what other formats take.

Each cell is one message of LeNet-5-Caffe (430,500 weights, trained here on Fashion-MNIST) or of
ResNet-18's matrices (11.2M, values resampled from that LeNet), encoded with the schema known.

Masks    iid; layers: densities differ by layer; rows: half of them dropped whole; topk: the largest
         weights where they are; moved: 1 or 10 % of the kept ones, the mask before is known
Values   trained weights, or one client's update; iid and moved masks carry the largest ones
Limit    mask: n * H, by tensor (layers, topk), flags + live rows, lost + grown (moved); values:
         nnz * (H(exponent) + 24 bits) in fp32, + 8 bits in bf16, nnz * H(symbol) in int8, of those
         sent. It takes mantissas for noise: frames that know better fall below 1
Speed    MB/s: 4 bytes x all weights / median CPU seconds (other jobs matter less), on one thread

    python benchmarks/speed/wire.py [--shapes lenet resnet18] [--quick]
"""

import argparse
import importlib.util
import io
import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

import fedsieve
from fedsieve.core.errors import DataError
from fedsieve.core.keys import fold
from fedsieve.core.message import Bits, Dense, Kept, Params
from fedsieve.engine.client import ClientRuntime
from fedsieve.engine.executors.inline import Inline
from fedsieve.jobs.config import make
from fedsieve.jobs.job import build
from fedsieve.models.zoo.registry import read_model
from fedsieve.wire import Precision
from fedsieve.wire.codec import Coding, Decoder, Known, encode, masks_of
from fedsieve.wire.compressors import NAMED
from fedsieve.wire.precision import GROUP
from fedsieve.wire.schema import schema_of
from rounds import WORKLOADS, by_fedsieve

Array: TypeAlias = NDArray[Any]
Drawn: TypeAlias = tuple[Array, float, Array | None]  # mask, its limit in bits, mask before
RNG = np.random.default_rng(0)
MASKS = ("iid", "layers", "rows", "topk", "moved 1%", "moved 10%")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")  # the last one has no goals
MODELS = {"lenet": ("lenet5_caffe", (1, 28, 28)), "resnet18": ("resnet18", (3, 32, 32))}
LINE = "{:<9}{}{:>11,}{:>11,}{:>12,.0f}{:>9.4f}{:>8.4f}{:>7.0f}{:>7.0f}".format
MASK_HEAD = 7  # bytes that a mask may take beside its bits: head, first symbol, end of a byte
HEAD = "shape    dens. mask      values  prec      frame       mask       limit  x limit  x mask"


class Sparse(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]


class Whole(NamedTuple):
    weights: Dense


class Cell(NamedTuple):
    name: str  # density, mask, values, precision
    frame_ratio: float
    mask_ratio: float
    coded_ratio: float  # the same without MASK_HEAD
    encode: float  # MB/s
    decode: float


def entropy(symbols: Array) -> float:
    """Bits of all symbols, coded one by one as often as they occur."""
    counts = np.bincount(symbols)
    return float(counts @ np.log2(symbols.size / np.maximum(counts, 1)))


def largest(values: Array, count: int) -> Array:  # their places, in order
    return np.sort(np.argpartition(-np.abs(values), count)[:count])


def draw_mask(kind: str, flat: Array, like: Params, density: float) -> Drawn:
    sizes = np.array([tensor.numel() for tensor in like.values()])
    draws, owner = RNG.random(flat.size, np.float32), np.repeat(np.arange(sizes.size), sizes)
    kept: Array = draws < density
    if kind in {"iid", "dense"}:
        return kept, entropy(kept), None
    if kind.startswith("moved"):
        now, old, new = kept.copy(), np.flatnonzero(kept), np.flatnonzero(~kept)
        count = old.size * int(kind[6:-1]) // 100
        now[RNG.choice(old, count, replace=False)] = False
        now[RNG.choice(new, count, replace=False)] = True
        return now, entropy(now[old]) + entropy(now[new]), kept
    if kind == "rows":
        flags = [RNG.permutation(len(tensor)) < len(tensor) / 2 for tensor in like.values()]
        live = np.concatenate(list(map(np.repeat, flags, sizes // [f.size for f in flags])))
        kept = live & (draws < density / live.mean())
        return kept, sum(map(entropy, flags)) + entropy(kept[live]), None
    if kind == "layers":
        shares = np.linspace(1.6, 0.4, sizes.size)
        kept = draws < np.minimum(density * flat.size / (shares @ sizes) * shares, 0.95)[owner]
    else:
        kept = np.bincount(largest(flat, round(density * flat.size)), minlength=flat.size) > 0
    return kept, sum(entropy(kept[owner == i]) for i in range(sizes.size)), None


def value_limit(sent: Array, precision: Precision) -> float:
    if precision == "int8":
        peaks = np.maximum.reduceat(np.abs(sent), np.arange(0, sent.size, GROUP))
        steps = np.repeat(np.maximum(peaks, 1e-30) / 127, GROUP)[: sent.size]
        return entropy(np.rint(sent / steps).astype(np.int64) + 127)
    exponents = sent.view(np.uint32) >> 23 & 255
    return entropy(exponents) + (24 if precision == "fp32" else 8) * sent.size


def seconds(function: Callable[[], object], repeats: int = 1) -> float:
    return float(np.median(timeit.repeat(function, "pass", time.process_time, repeats, 1)))


def flatten(tensors: Params) -> Array:
    return np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors.values()])


def unflatten(flat: Array, like: Params) -> Params:
    pieces = torch.split_with_sizes(torch.from_numpy(flat), [t.numel() for t in like.values()])
    return {n: p.view(t.shape) for (n, t), p in zip(like.items(), pieces, strict=True)}


def measure(shape: str, name: str, flat: Array, like: Params, drawn: Drawn) -> Iterator[Cell]:
    weights, (kept, mask_bits, before) = unflatten(flat, like), drawn
    message = Sparse(unflatten(kept, like), weights) if mask_bits else Whole(weights)
    held = {} if before is None else masks_of(Sparse(unflatten(before, like), weights))
    decoder = Decoder()
    known = Known(frozenset({decoder.learn(schema_of(message)[0].packed())}), held)
    for precision in PRECISIONS:
        write = partial(encode, message, known, Coding(NAMED[precision], fold(0, "bench")))
        payload = write()
        read = partial(decoder.decode, payload.data, type(message), held)
        sent = flatten((arrived := read()).weights)[kept]
        assert not mask_bits or np.array_equal(flatten(arrived.mask), kept)
        assert precision != "fp32" or np.array_equal(sent, flat[kept])
        limit, size = (mask_bits + value_limit(sent, precision)) / 8, len(payload.data)
        mask, coded = 8 * payload.mask_bytes, 8 * (payload.mask_bytes - MASK_HEAD)
        ratios = (mask / mask_bits, coded / mask_bits) if mask_bits else (1.0, 1.0)
        speeds = [4e-6 * flat.size / seconds(do, repeats=7) for do in (write, read)]
        cell = Cell(f"{name:<24}{precision:<4}", size / limit, *ratios, *speeds)
        figures = payload.mask_bytes, limit, *cell[1:3], *cell[4:]
        print(LINE(shape, cell.name, size, *figures), flush=True)
        yield cell


def rivals(flat: Array, kept: Array, like: Params) -> str:
    """Bytes of other formats for the same sparse fp32 message."""
    sparse, npz, coo = unflatten(flat * kept, like), io.BytesIO(), io.BytesIO()
    np.savez(npz, places=np.flatnonzero(kept).astype(np.int32), values=flat[kept])
    torch.save({name: tensor.to_sparse() for name, tensor in sparse.items()}, coo)
    dense = len(safetensors.torch.save(sparse))
    found = {"npz": npz.tell(), "torch COO": coo.tell(), "safetensors": dense}
    note = "" if importlib.util.find_spec("flwr") else " (no flwr here: Flower is left out)"
    if not note:
        record = importlib.import_module("flwr.app").ArrayRecord(sparse)
        serde = importlib.import_module("flwr.common.serde")
        found["Flower"] = serde.array_record_to_proto(record).ByteSize()
    return ", ".join(f"{name} {size:,}" for name, size in found.items()) + note


def train(rounds: int) -> dict[str, Array]:
    """Workload A: the model's weights and one client's update; prints coding's share of a round."""
    settings: dict[str, Any] = {
        **WORKLOADS["A"],
        "method": "fedavg",
        "preset": "paper",
        "cohort": 10,
    }
    result = fedsieve.run(**settings, rounds=rounds, eval_every=rounds)
    print(f"LeNet: {rounds} rounds of workload A, accuracy {result.summary.global_accuracy:.3f}")
    job, decoder = build(make(settings)), Decoder()
    server = job.method.init_server(fold(0))._replace(weights=result.model)
    down = job.method.broadcast(server, fold(0))
    work = [(job.federation.batches(client), fold(0, client)) for client in range(10)]
    messages = [down, *(job.method.client_update(down, (), *each)[0] for each in work)]
    known = Known(frozenset(decoder.learn(schema_of(m)[0].packed()) for m in messages))

    def code() -> None:  # the broadcast once each way, every reply once each way
        for message in messages:
            decoder.decode(encode(message, known).data, type(message))

    play = partial(next, by_fedsieve(job, Inline(ClientRuntime(job.method, job.federation))))
    times = [(seconds(code), seconds(play)) for _ in range(6)][1:]  # the first warms up
    coding, whole = np.median(times, axis=0).tolist()
    word = "PASS" if coding < 0.05 * whole else "FAIL"
    print(f"{word}  coding {1e3 * coding:.1f} of {1e3 * whole:.0f} ms in a round, goal 5 %")
    before, after = (flatten(message.weights) for message in messages[:2])
    return {"weights": before, "update": after - before}


def table(shape: str, values: str, flat: Array, like: Params) -> Iterator[Cell]:
    for density, kind in ((1, "dense"), *((d, k) for d in (0.005, 0.05, 0.5) for k in MASKS)):
        drawn, sent = draw_mask(kind, flat, like, density), flat.copy()
        if kind == "iid" or kind.startswith("moved"):
            sent[drawn[0]] = flat[largest(flat, int(drawn[0].sum()))]
        if kind == "iid" and values == "weights":
            print(f"{shape:<9}{density:<6g}other formats: {rivals(sent, drawn[0], like)}")
        yield from measure(shape, f"{density:<6g}{kind:<10}{values}", sent, like, drawn)


def report(shape: str, cells: list[Cell]) -> None:
    timed, speed_goal = [c for c in cells if "int8" not in c.name], 200 if shape == "lenet" else 300
    for p in PRECISIONS[:2]:
        verdict(f"{shape} frames {p}", [c for c in cells if p in c.name], "frame_ratio", 1.03)
    for kind in MASKS:
        verdict(f"{shape} masks {kind}", [c for c in cells if kind in c.name], "coded_ratio", 1.05)
    verdict(f"{shape} encode MB/s", timed, "encode", speed_goal)
    verdict(f"{shape} decode MB/s", timed, "decode", speed_goal)


def verdict(title: str, cells: list[Cell], field: str, goal: float) -> None:
    """The worst cell against a goal: at least a speed (above 100), at most a ratio."""
    found = sorted((getattr(cell, field), cell.name) for cell in cells)
    value, name = found[0] if goal > 100 else found[-1]
    word = "PASS" if (value >= goal if goal > 100 else value <= goal) else "FAIL"
    print(f"{word}  {title:<24}{value:>8.4g}  goal {goal:<6g}{name}")


def resampled(flat: Array, like: Params) -> Array:
    """Values of a larger net: drawn from `flat`, jittered, scaled to each tensor's fan-in."""
    fans = [(t.numel(), np.sqrt(800 * len(t) / t.numel())) for t in like.values()]
    values = np.concatenate([scale * RNG.choice(flat, size) for size, scale in fans])
    return (values * RNG.normal(1, 0.01, values.size)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Frames against the information limit.")
    parser.add_argument("--shapes", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="little training, no updates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        values = train(5 if arguments.quick else 25)
    except DataError as error:
        print(f"values are normal draws, and no round is timed: {error}")
        values = {"weights": RNG.normal(0, 0.03, 430_500).astype(np.float32)}
    print(f"{HEAD}    enc    dec")
    cells: dict[str, list[Cell]] = {shape: [] for shape in arguments.shapes}
    for shape, done in cells.items():
        module = read_model(MODELS[shape][0]).build(MODELS[shape][1], 10)
        like = {name: p.detach() for name, p in module.named_parameters() if p.ndim > 1}
        for name in ["weights"] if arguments.quick else values:
            flat = values[name] if shape == "lenet" else resampled(values[name], like)
            done.extend(table(shape, name, flat, like))
    for shape, done in cells.items():
        report(shape, done)


if __name__ == "__main__":
    main()
