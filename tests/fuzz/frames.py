"""Damaged and forged frames against the decoder: it refuses or decodes, in little memory and time.

Forged frames have right checksums; some lie about their tensors in every part at once, so that
nothing but the receiver's own bound stands against them.

Frame `number` of a `seed` is always the same one, so a failure can be run again alone. With atheris
installed, a fuzzer guided by coverage then tries as many frames of its own. The tests of the wire
run the same generator for a short while.

    python tests/fuzz/frames.py [--frames 1000000] [--seed 0] [--first 0]
"""

import argparse
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch
import xxhash

try:
    import atheris  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    atheris = None

with atheris.instrument_imports(include=["fedsieve.wire"]) if atheris else nullcontext():
    from fedsieve.core import keys, tree
    from fedsieve.core.errors import WireError
    from fedsieve.core.keys import fold
    from fedsieve.core.message import (
        Bit,
        Bits,
        Count,
        Dense,
        Drawn,
        Exact,
        Kept,
        Mask,
        Params,
        Scalar,
    )
    from fedsieve.core.options import read
    from fedsieve.wire.bits import count_bytes
    from fedsieve.wire.bound import SCHEMA_BYTES, Bound
    from fedsieve.wire.codec import Coding, Decoder, Known, Recall, encode, masks_of
    from fedsieve.wire.compressors import KINDS, NAMED
    from fedsieve.wire.contexts import Contexts, contexts_of
    from fedsieve.wire.frame import NAME_BYTES, VERSION, open_frame
    from fedsieve.wire.precision import PRECISIONS
    from fedsieve.wire.schema import BOOLEAN, DTYPES, schema_of, unpacked
    from fedsieve.wire.values import SPARSE

SLACK_BYTES = 30_000  # Python's own objects: schema, header, blocks, error texts
MAX_SECONDS = 1.0  # of CPU, for messages of 60 kB at most
SAMPLED = 100  # of so many frames, the memory of one is measured


class Pruned(NamedTuple):
    """One field of each role; the values come before their mask."""

    weights: Annotated[Params, Kept(where="mask")]
    mask: Bits
    gates: Dense
    shares: Exact
    dual: Scalar
    examples: Count


class Plain(NamedTuple):
    """Tensors of every type."""

    weights: Dense


class Masks(NamedTuple):
    """Bits alone."""

    first: Bits
    second: Bits


class Asked(NamedTuple):
    """Probabilities of the bits in the answer."""

    odds: Dense


class Voted(NamedTuple):
    """Bits coded by how likely they are."""

    votes: Annotated[Mask, Bit(given="odds")]


class Chosen(NamedTuple):
    """Probabilities, of which drawn bits arrive."""

    votes: Annotated[Params, Drawn(given="odds")]


WAYS = ("eden(bits=2)", "uniform", "qsgd", "groups", "top_k(0.2)", "low_rank(1)", "lattice")


class Source(NamedTuple):
    """A good frame and what its receiver holds."""

    kind: type
    data: bytes
    schema: bytes
    recall: Recall
    dense_bytes: int
    contexts: Contexts

    def bound(self, *, is_open: bool) -> Bound:
        """What its receiver takes: any tensors of as many bytes, or these alone."""
        names = SCHEMA_BYTES + 2 * len(self.schema)
        if is_open:
            return Bound(self.dense_bytes, schema_bytes=names)
        parts = unpacked(self.schema).parts
        return Bound(0, {p.name: frozenset(p.entries) for p in parts if p.entries}, names)


class Case(NamedTuple):
    """A frame made from a source; `is_sealed` where its checksum is right."""

    source: Source
    data: bytes
    is_sealed: bool
    is_open: bool = False  # the receiver does not know which tensors to expect


def make_sources() -> list[Source]:
    """Messages of several kinds at every precision: whole, and coded against held masks."""
    ways = [*(NAMED[precision] for precision in PRECISIONS), *(read(w, KINDS, "up") for w in WAYS)]
    codings = [Coding(way, fold(0, "round")) for way in ways]
    pairs: list[tuple[Any, Any]] = [(_pruned(0), _pruned(1)), (_masks(0), _masks(1))]
    pairs += [(plain, plain) for plain in (_plain(3000, 1), _plain(9000, 2))]
    asked, voted = _voted()
    likely = _source(voted, Known(contexts=contexts_of(Voted, asked)), Coding())
    own = Chosen({n: 0.8 * odds + 0.1 for n, odds in asked.odds.items()})
    drawn = _source(own, Known(contexts=contexts_of(Chosen, asked)), Coding())
    return [likely, drawn] * 4 + [
        _source(message, known, coding)
        for coding in codings
        for message, before in pairs
        for known in (Known(), Known(frozenset({schema_of(message)[1]}), masks_of(before)))
    ]


def make_case(sources: list[Source], seed: int, number: int) -> Case:
    """Frame `number` of `seed`."""
    dice = random.Random(seed << 40 | number)
    source = dice.choice(sources)
    if dice.random() < 0.2:
        return Case(source, _damaged(source.data, dice), is_sealed=False)
    is_open = dice.random() < 0.5
    if dice.random() < 0.1:
        return Case(source, _bomb(source, dice), is_sealed=True, is_open=is_open)
    frame = _opened(source.data)
    for _ in range(dice.choice((1, 1, 1, 2))):
        frame = _forged(frame, dice.choice(sources), dice)
    header = frame.header if dice.random() < 0.9 else _mutated(frame.header, dice)
    packed = msgspec.msgpack.encode(header)
    if dice.random() < 0.05:
        packed = _scrambled(packed, dice)
    body = struct.pack("<4sHHI", b"FSV1", VERSION, 0, len(packed)) + packed
    blocks = frame.names + frame.masks + frame.values
    return Case(source, _checked(body + b"".join(blocks)), is_sealed=True, is_open=is_open)


def is_refused(case: Case) -> bool:
    """Whether the decoder refuses a frame; raises unless it does so, or decodes, properly."""
    source, started = case.source, time.process_time()
    decoder = Decoder()
    decoder.learn(source.schema)
    try:
        bound = source.bound(is_open=case.is_open)
        found = decoder.decode(case.data, source.kind, source.recall, bound, source.contexts)
    except WireError:
        return True
    finally:
        if (spent := time.process_time() - started) > MAX_SECONDS:
            raise AssertionError(f"took {spent:.1f} s")
    if not case.is_sealed:
        raise AssertionError("damage went unnoticed")
    shapes = {path: t.shape for path, t in tree.leaves(found) if isinstance(t, torch.Tensor)}
    schema = decoder.schemas[open_frame(case.data).header.schema]
    expected = {
        f"{part.name}/{entry.name}": entry.shape
        for part in schema.parts
        if isinstance(getattr(found, part.name), dict)
        for entry in part.entries
    }
    if shapes != expected:
        raise AssertionError(f"shapes {expected} expected, found {shapes}")
    return False


def check_memory(case: Case) -> int:
    """Bytes that decoding takes at most; raises beyond twice the message's own.

    Eight times and 64 kB where values are compressed or drawn: draws and steps are arrays, too.
    """
    tracemalloc.start()
    try:
        is_refused(case)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    precision = open_frame(case.source.data).header.precision
    is_compressed = not isinstance(precision, int) or case.source.kind is Chosen
    most = (8, SLACK_BYTES + 2**16) if is_compressed else (2, SLACK_BYTES)
    if peak > most[0] * case.source.dense_bytes + most[1]:
        raise AssertionError(f"took {peak} bytes, tensors have {case.source.dense_bytes}")
    return peak


def _pruned(number: int) -> Pruned:
    """Of two with different numbers, one position of a hundred differs in the masks."""
    weights = {"fc": _normal("fc", 60, 200), "conv": _normal("conv", 20, 3, 5, 5)}
    odds = {n: keys.uniform(fold(1, "kept", n), w.shape) for n, w in weights.items()}
    mask: Mask = {n: (u > 0.01 * number) & (u < 0.2 + 0.01 * number) for n, u in odds.items()}
    weights["bias"] = _normal("bias", 60)
    gates = {"g": torch.arange(40, dtype=torch.uint8), "h": _normal("h", 40)}
    return Pruned(weights, mask, gates, {"pi": torch.tensor([0.25, 0.75])}, -0.5, 300)


def _plain(size: int, least: float) -> Plain:
    weights = {dtype: _normal(dtype, 17, 30).to(kind) for dtype, kind in DTYPES.items()}
    sparse = _normal("sparse", size)
    return Plain(weights | {"sparse": sparse.where(sparse > least, 0), "none": torch.zeros(0, 4)})


def _masks(number: int) -> Masks:
    rows = keys.uniform(fold(2, "rows"), (50, 1))
    odds = keys.uniform(fold(2, "odds"), (50, 80))
    return Masks({"a": odds < 0.1 + 0.01 * number}, {"b": (odds < rows) & (rows > 0.5)})


def _voted() -> tuple[Asked, Voted]:
    odds = {"a": keys.uniform(fold(3, "a"), (50, 80)), "b": keys.uniform(fold(3, "b"), (50,))}
    return Asked(odds), Voted({n: keys.uniform(fold(4, n), p.shape) < p for n, p in odds.items()})


def _normal(name: str, *shape: int) -> torch.Tensor:
    return keys.normal(fold(0, name), shape)


def _source(message: Any, known: Known, coding: Coding) -> Source:
    schema, _ = schema_of(message)
    data = encode(message, known, coding).data
    size = schema.tensor_bytes()
    return Source(type(message), data, schema.packed(), known.masks, size, known.contexts)


class _Open(NamedTuple):
    """Header, as plain lists, names of held masks, and blocks of a frame."""

    header: list[Any]
    names: list[bytes]
    masks: list[bytes]
    values: list[bytes]


def _opened(data: bytes) -> _Open:
    sections = open_frame(data)
    (size,) = struct.unpack_from("<I", data, 8)
    header: list[Any] = msgspec.msgpack.decode(data[12 : 12 + size])
    names = [m.base.to_bytes(NAME_BYTES, "little") for m in sections.masks if m.base is not None]
    masks = [bytes(mask.data) for mask in sections.masks]
    return _Open(header, names, masks, [bytes(block) for block in sections.values])


def _checked(body: bytes) -> bytes:
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def _damaged(data: bytes, dice: random.Random) -> bytes:
    """Some bits flipped, or a shorter or longer frame; never the same one."""
    match dice.randrange(3):
        case 0:
            return data[: dice.randrange(len(data))]
        case 1:
            return data + dice.randbytes(dice.randint(1, 64))
    return _flipped(data, dice)


def _flipped(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for place in dice.sample(range(8 * len(data)), min(dice.randint(1, 8), 8 * len(data))):
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _forged(frame: _Open, other: Source, dice: random.Random) -> _Open:
    """One part of a frame replaced; whoever does this can make the rest fit."""
    header, names = list(frame.header), list(frame.names)
    masks, values = list(frame.masks), list(frame.values)
    foreign = _opened(other.data)
    match dice.choice(("block", "block", "splice", "lengths", "bases", "numbers", "how", "schema")):
        case "block" | "splice" as part:
            blocks = dice.choice([group for group in (masks, values) if group])
            at = dice.randrange(len(blocks))
            pieces = [*foreign.masks, *foreign.values, *masks, *values, b""]
            is_splice = part == "splice"
            blocks[at] = dice.choice(pieces) if is_splice else _scrambled(blocks[at], dice)
            is_change = [type(n) is int and n < 0 for n in header[1]] + [False] * len(masks)
            header[1] = [~len(m) if c else len(m) for m, c in zip(masks, is_change, strict=False)]
            header[2] = [len(value) for value in values]
        case "lengths":
            at = dice.choice((1, 2))
            header[at] = _lengths(header[at], dice)
        case "bases":
            is_change = [dice.random() < 0.7 for _ in masks]
            header[1] = [~len(m) if c else len(m) for m, c in zip(masks, is_change, strict=True)]
            held = [mark.to_bytes(NAME_BYTES, "little") for mark in other.recall]
            some = [*held, *frame.names, bytes(NAME_BYTES), dice.randbytes(NAME_BYTES), b""]
            names = dice.choices(some, k=sum(is_change))
        case "numbers":
            header[3] = _mutated(header[3], dice)
        case "how":
            header[4] = dice.choice((0, 1, 2, 3, 4, -1, 255))
        case "schema":
            parts = msgspec.msgpack.decode(header[5] or foreign.header[5] or b"\x91\x90")
            header[5] = msgspec.msgpack.encode(_mutated(parts, dice))
            header[0] = xxhash.xxh3_64_intdigest(header[5])
    return _Open(header, names, masks, values)


def _bomb(source: Source, dice: random.Random) -> bytes:
    """Few bytes that stand for tensors as large as they please, consistent in every part."""
    schema: list[Any] = msgspec.msgpack.decode(source.schema)
    shape = dice.choice(([2**29], [2**31, 0], [2**33, 0], [2**15, 2**15], [3, 2**28], [70_000]))
    masks, values = [], list[bytes]()
    for _, role, entries in schema[0]:
        entries[:] = [[name, dtype, shape] for name, dtype, _ in entries]
        if role in BOOLEAN:
            drawn = b"\7" + bytes(8) + b"\1\0"
            coded = (b"\0", b"\1", b"\5\0", b"\5\1", b"\3\0\0", b"\6\0", drawn)
            masks.append(dice.choice(coded))
        elif any(dtype == "f4" for _, dtype, _ in entries):
            values.append((bytes([SPARSE]) + count_bytes(1) + b"\0") * dice.choice((0, 1, 8192)))
        if any(dtype != "f4" for _, dtype, _ in entries) and role not in BOOLEAN:
            values.append(b"")
    packed, numbers = msgspec.msgpack.encode(schema), open_frame(source.data).header.numbers
    sizes = [len(m) for m in masks], [len(v) for v in values]
    header = msgspec.msgpack.encode(
        [xxhash.xxh3_64_intdigest(packed), *sizes, numbers, dice.randrange(4), packed]
    )
    body = struct.pack("<4sHHI", b"FSV1", VERSION, 0, len(header)) + header
    return _checked(body + b"".join(masks + values))


def _lengths(lengths: list[int], dice: random.Random) -> list[int]:
    """Lengths with the same sum, mostly, but other borders."""
    if len(lengths) < 2 or dice.random() < 0.3:
        return [*lengths, dice.choice((0, -1, 1, 2**63))]
    moved = dice.randint(-3, 3) * dice.choice((1, 1, 1, 1000))
    return [lengths[0] + moved, lengths[1] - moved, *lengths[2:]]


def _scrambled(data: bytes, dice: random.Random) -> bytes:
    """Bytes flipped, cut, doubled or written over, mostly near the front, where tags are."""
    match dice.randrange(6):
        case 0:
            return data[: dice.randint(0, len(data))]
        case 1:
            return data + dice.randbytes(dice.randint(1, 9))
        case 2:
            cut = dice.randint(0, len(data))
            return data[:cut] + data[cut // 2 :]
        case 3:
            at = dice.randrange(min(len(data), 16) + 1)
            return data[:at] + bytes([dice.randrange(256)]) * dice.randint(1, 5) + data[at + 1 :]
        case 4:
            return bytes([dice.randrange(9)]) + data[1:]
    return _flipped(data, dice)


_SIZES = (0, 1, 3, 200, 70_000, -1, 2**31, 2**40, 2**63, 2**64 - 1)
_JUNK: tuple[Any, ...] = (*_SIZES, 0.5, None, True, "f4", "w", b"", b"\xff", [], {})


def _mutated(value: Any, dice: random.Random) -> Any:
    """A copy of nested lists with one place changed, doubled, dropped or wrapped."""
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        change = dice.choice([[_mutated(value[at], dice)]] * 5 + [[], [value[at]] * 2])
        return [*value[:at], *change, *value[at + 1 :]]
    return dice.choice([dice.choice(_JUNK), [value]])


def fuzz(seed: int, first: int, frames: int) -> None:
    """Try frames one after the other; the first that fails ends it."""
    sources, refused, peak = make_sources(), 0, 0
    started = time.monotonic()
    for number in range(first, first + frames):
        try:
            case = make_case(sources, seed, number)
            refused += is_refused(case)
            if number % SAMPLED == 0 or frames == 1:
                peak = max(peak, check_memory(case))
        except BaseException:
            print(f"failed: python {sys.argv[0]} --seed {seed} --first {number} --frames 1")
            raise
        done = number + 1 - first
        if done % 10_000 == 0 or done == frames:
            rate = done / (time.monotonic() - started)
            print(
                f"seed {seed}: {done} frames, {refused / done:.1%} refused, "
                f"{rate:.0f} a second, at most {peak} bytes",
                flush=True,
            )


def explore(seed: int, frames: int) -> None:
    """Let atheris change frames, guided by the branches they take; ends the process."""
    sources = make_sources()

    def one(data: bytes) -> None:
        if data:
            source = sources[data[0] % len(sources)]
            is_refused(Case(source, _checked(data[1:]), is_sealed=True))

    corpus = Path(tempfile.mkdtemp(prefix="fuzz-"))  # atheris adds what it finds
    for number, source in enumerate(sources):
        (corpus / f"{number:03d}").write_bytes(bytes([number]) + source.data[:-8])
    print(f"atheris: frames in {corpus}", flush=True)
    atheris.Setup([sys.argv[0], f"-runs={frames}", f"-seed={seed + 1}", str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="raise", under="ignore")  # a frame may not even warn
    fuzz(arguments.seed, arguments.first, arguments.frames)
    if atheris is not None and arguments.frames > 1:
        explore(arguments.seed, arguments.frames)


if __name__ == "__main__":
    main()
