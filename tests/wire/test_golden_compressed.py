"""Golden frames of compressed messages: committed bytes are written again and read alike.

    python tests/wire/test_golden_compressed.py     # writes the file anew: the format has changed

The frame of signs is derived by hand from the documented layout; the others hold the format still.
"""

import json
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import xxhash

from fedsieve.core.keys import Key
from fedsieve.core.message import Dense
from fedsieve.core.options import read
from fedsieve.wire.codec import Coding, Decoder, Known, encode
from fedsieve.wire.compressors import KINDS, NAMED
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.schema import schema_of
from fedsieve.wire.versions import next_version, version_of

COMPRESSORS = (
    "sign", "uniform", "uniform(step=2, dither=false)", "eden(bits=1)", "eden(bits=2)",
    "eden(bits=3)", "eden(bits=4)", "qsgd", "groups", "groups(bits=8, size=8)", "top_k(0.25)",
    "top_k(0.25, values=eden(bits=4))", "ternary(0.25)", "beyond(1)", "rand_k(0.25)",
    "low_rank(rank=1)", "lattice",
)  # fmt: skip
FILE = Path(__file__).with_name("compressed_frames.json")
KEY = Key(7)


class Message(NamedTuple):
    """Of a matrix and a vector."""

    weights: Dense


def sent() -> Message:
    places = torch.arange(16.0)
    return Message({"w": torch.sin(places).view(4, 4), "b": torch.tensor([0.5, -0.25, 3.0])})


def base() -> Message:
    return Message({name: torch.full_like(w, 0.125) for name, w in sent().weights.items()})


def written(text: str) -> bytes:
    compression = read(text, KINDS, "compression")
    known = Known(frozenset({schema_of(sent())[1]}))
    if isinstance(compression, Lattice):
        held = version_of(next_version(base(), None, compression))
        (last,) = held.values()
        message, known = next_version(sent(), last, compression), known._replace(masks=held)
        return encode(message, known, Coding(compression, KEY)).data
    return encode(sent(), known, Coding(compression, KEY, base())).data


def received(data: bytes) -> list[float]:
    decoder = Decoder()
    decoder.learn(schema_of(sent())[0].packed())
    held = version_of(next_version(base(), None, Lattice()))
    message = decoder.decode(data, Message, held, base=base())
    return np.concatenate([w.numpy().reshape(-1) for w in message.weights.values()]).tolist()


@pytest.mark.parametrize("text", COMPRESSORS)
def test_committed_frames_are_written_and_read(text):
    golden = json.loads(FILE.read_text())[text]
    assert written(text).hex() == golden["frame"]
    assert received(bytes.fromhex(golden["frame"])) == pytest.approx(golden["values"], abs=1e-6)


def test_every_compressor_has_a_frame():
    kinds = {type(read(text, KINDS, "compression")) for text in COMPRESSORS}
    assert kinds >= set(KINDS) - set(map(type, NAMED.values()))


def test_the_frame_of_signs_is_derived():
    differences = [w.numpy().reshape(-1) - np.float32(0.125) for w in sent().weights.values()]
    scales = b"".join(struct.pack("<f", np.abs(d).mean(dtype=float)) for d in differences)
    bits = np.packbits(np.concatenate(differences) < 0).tobytes()
    header = msgspec.msgpack.encode(
        [schema_of(sent())[1], [], [len(scales + bits)], [], ["sign", int(KEY), 1], b""]
    )
    body = b"FSV1" + struct.pack("<HHI", 5, 0, len(header)) + header + scales + bits
    assert written("sign") == body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


if __name__ == "__main__":
    frames = {text: written(text) for text in COMPRESSORS}
    lines = {t: {"frame": data.hex(), "values": received(data)} for t, data in frames.items()}
    FILE.write_text(json.dumps(lines, indent=1) + "\n")
