"""What every byte of a message is: header, masks and values, per tensor, against the limit.

The limit is what a perfect memoryless coder needs. Masks: the sum over tensors of n H(density)
bits. Values: H(exponent) bits, and sign and mantissa raw (24 bits in float32, 8 in bfloat16); int8:
H(symbol). Entropies are those of the very values sent, so a coder that finds more structure can
stay below.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError
from fedsieve.core.message import (
    Bit,
    Bits,
    Count,
    Dense,
    Drawn,
    Exact,
    Kept,
    Natural,
    Number,
    Params,
    Scalar,
    Whole,
    fields,
)
from fedsieve.wire import Precision
from fedsieve.wire.bits import Bools
from fedsieve.wire.codec import Decoder
from fedsieve.wire.contexts import BINS, FINE_BINS
from fedsieve.wire.entropy import binary_entropy
from fedsieve.wire.frame import Compressed, open_frame
from fedsieve.wire.precision import PRECISIONS
from fedsieve.wire.schema import BOOLEAN, Hash, Part, Schema, hash_of, read_schema
from fedsieve.wire.versions import VERSIONS

_RAW_BITS = {"fp32": 24, "bf16": 8, "fp16": 11}
_EXPONENT_SHIFT = 23


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A message kept for inspection, with all that its receiver held."""

    round: int
    client: int
    direction: Literal["up", "down"]
    schema: bytes
    masks: tuple[tuple[Hash, bytes, int], ...]  # hash, packed bits, size
    data: bytes
    contexts: dict[str, dict[str, bytes]] = {}
    base_schema: bytes = b""  # of the message that this one answers, where it has differences to it
    base_data: bytes = b""

    @property
    def file_name(self) -> str:
        return f"{self.round:07d}-{self.client:07d}-{self.direction}.frame"


class Line(NamedTuple):
    """One tensor of a message; bytes of a block shared by several tensors go by their limits."""

    field: str
    tensor: str
    role: str
    size: int
    sent: int
    mask_bytes: float
    value_bytes: float
    limit_bytes: float


class Inspection(NamedTuple):
    """A message taken apart; header, mask and value bytes add up to total."""

    total_bytes: int
    header_bytes: int
    announced_bytes: int
    mask_bytes: int
    value_bytes: int
    limit_bytes: float
    compression: str
    numbers: tuple[int | float, ...]
    lines: list[Line]


def read_frame(path: Path) -> Frame:
    """A kept message; WireError if the file is none."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Frame)
    except FileNotFoundError as error:
        raise WireError(f"{path}: there is no such message, and no run folder.") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"{path}: not a kept message ({error}).") from error


def inspect(frame: Frame) -> Inspection:
    """Take a message apart.

    Raises:
        WireError: it is malformed.
    """
    sections = open_frame(frame.data)
    header = sections.header
    schema, _ = read_schema(frame.schema)
    if hash_of(frame.schema) != header.schema:
        raise WireError("the frame belongs to another schema than the one kept with it.")
    message = read_message(frame)
    masks, values = sum(len(block.data) for block in sections.masks), sum(header.values)
    how = header.precision
    precision = PRECISIONS[how] if isinstance(how, int) else None
    return Inspection(
        total_bytes=len(frame.data),
        header_bytes=len(frame.data) - masks - values,
        announced_bytes=len(header.announced),
        mask_bytes=masks,
        value_bytes=values,
        limit_bytes=message_limit(message, precision) if precision else float(masks + values),
        compression=how.text if isinstance(how, Compressed) else PRECISIONS[how],
        numbers=header.numbers,
        lines=_lines(schema, message, masks, values, precision),
    )


def read_message(frame: Frame) -> Any:
    """The message in a kept frame, as a tuple of a class made for it.

    Raises:
        WireError: it is malformed.
    """
    schema, _ = read_schema(frame.schema)
    decoder, held = Decoder(2**40), _unpacked(frame)
    decoder.learn(frame.schema)
    base = None
    if frame.base_schema:
        decoder.learn(frame.base_schema)
        base_kind = message_class(read_schema(frame.base_schema)[0])
        base = decoder.decode(frame.base_data, base_kind, held)
    last = {p.name: (FINE_BINS if p.role == "drawn" else BINS) - 1 for p in schema.parts}
    contexts = {
        field: {n: np.frombuffer(b, np.uint8).clip(max=last[field]) for n, b in tensors.items()}
        for field, tensors in frame.contexts.items()
        if field in last
    }
    kind = message_class(schema)
    return decoder.decode(frame.data, kind, held, contexts=contexts, base=base)


def mask_bits(kept: Bools) -> float:
    """Entropy of one tensor's mask at its own density: n H(share of True)."""
    return binary_entropy(int(np.count_nonzero(kept)), kept.size)


def value_bits(values: NDArray[np.float32], precision: Precision = "fp32") -> float:
    """Bits of the values at a precision; for int8, of whole steps of the largest magnitude."""
    if not values.size:
        return 0.0
    if precision == "int8":
        return values.size * _entropy(np.round(values / (np.abs(values).max() or 1) * 127))
    exponents = (values.view(np.uint32) >> _EXPONENT_SHIFT) & 0xFF
    return values.size * (_entropy(exponents) + _RAW_BITS[precision])


def message_limit(message: Any, precision: Precision = "fp32") -> float:
    """Bytes of a whole message at the limit, its masks new to the receiver."""
    bits = 0.0
    for name, role in fields(type(message)):
        value = getattr(message, name)
        match role:
            case Bit() | Drawn():
                bits += sum(mask_bits(m.numpy()) for m in value.values())
            case Whole() | Kept():
                mask = getattr(message, role.where) if isinstance(role, Kept) else {}
                exact = isinstance(role, Whole) and role.exact
                arrays = [
                    t[mask[n].expand_as(t)].numpy() if n in mask else t.numpy().reshape(-1)
                    for n, t in value.items()
                ]
                floats = [a for a in arrays if a.dtype == np.float32]
                how = "fp32" if exact else precision
                bits += value_bits(np.concatenate(floats), how) if floats else 0
                bits += sum(8 * a.nbytes for a in arrays if a.dtype != np.float32)
            case Number():
                bits += 64
            case Natural():
                bits += max(int(value).bit_length(), 1)
    return bits / 8


def message_class(schema: Schema) -> Any:
    """A message class made from a schema, for a reader that does not have the method's own."""
    roles: dict[str, Any] = {
        "dense": Dense, "exact": Exact, "bits": Bits, "scalar": Scalar, "count": Count,
        "drawn": Annotated[Params, Drawn(given="")],
    }  # fmt: skip
    hints = [
        (part.name, roles.get(part.role) or Annotated[Params, Kept(part.role.split(":", 1)[1])])
        for part in schema.parts
    ]
    return NamedTuple("Message", hints)


def _lines(
    schema: Schema, message: Any, masks: int, values: int, precision: Precision | None
) -> list[Line]:
    lines = []
    for part in schema.parts:
        for entry in part.entries:
            tensor = getattr(message, part.name)[entry.name].numpy()
            mask = _mask_of(part, message, entry.name)
            kept = tensor.reshape(-1) if mask is None else tensor[mask]
            is_mask = part.role in BOOLEAN
            if is_mask:
                bits = mask_bits(tensor)
            elif kept.dtype == np.float32:
                how = "fp32" if part.role == "exact" else precision
                bits = value_bits(kept, how) if how else 0.0
            else:
                bits = 8.0 * kept.nbytes
            sent = int(np.count_nonzero(tensor)) if is_mask else kept.size
            line = Line(part.name, entry.name, part.role, entry.count, sent, 0, 0, bits / 8)
            lines.append(line)
    mask_shares = _shares([x for x in lines if x.role in BOOLEAN])
    value_shares = _shares([x for x in lines if x.role not in BOOLEAN])
    return [
        x._replace(mask_bytes=masks * next(mask_shares))
        if x.role in BOOLEAN
        else x._replace(value_bytes=values * next(value_shares))
        for x in lines
    ]


def _shares(lines: list[Line]) -> Iterator[float]:
    """The part of each in what all take: by their limits, or by size where these are 0."""
    weights = [x.limit_bytes for x in lines]
    if not sum(weights):
        weights = [float(x.size) for x in lines]
    return iter([weight / (sum(weights) or 1) for weight in weights])


def _mask_of(part: Part, message: Any, name: str) -> Bools | None:
    if not part.role.startswith("kept:"):
        return None
    mask = getattr(message, part.role.split(":", 1)[1])
    tensor = getattr(message, part.name)[name]
    return mask[name].expand_as(tensor).numpy() if name in mask else None


def _unpacked(frame: Frame) -> dict[Hash, NDArray[Any]]:
    return {
        digest: np.frombuffer(bits, "<f4").astype(np.float32)
        if digest >= VERSIONS
        else np.unpackbits(np.frombuffer(bits, np.uint8), count=size).view(np.bool_)
        for digest, bits, size in frame.masks
    }


def _entropy(symbols: NDArray[Any]) -> float:
    _, counts = np.unique(symbols, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
