"""What a receiver takes, settled before a byte of a frame is read.

Whoever asks for a message knows what can come back: for a field that it has sent itself, the very
tensors; for others, how much at most. A frame that declares more is refused by its length or by
its schema, whatever its bytes say, so memory and time of decoding follow from the question.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fedsieve.core.errors import WireError
from fedsieve.core.options import brief
from fedsieve.wire.compressors import Compression
from fedsieve.wire.compressors.uniform import Uniform
from fedsieve.wire.schema import Entry, Part, Schema

MAX_BYTES = 2**32
HEADER_BYTES = 2**16  # three lists of at most 1024 numbers, and names of masks
SCHEMA_BYTES = 2**12  # names of fields, and of some tensors that were not asked for


class Bound(NamedTuple):
    """What a receiver is willing to hold.

    Attributes:
        max_bytes: of tensors in fields that are not `asked`, together.
        asked: tensors of fields that are known: just these, or none where a mask says what is sent.
        schema_bytes: of an announced schema; each may take twenty in memory.
        compression: that values must have been written with; None for any. Steps of `uniform` are
            the sender's choice.
    """

    max_bytes: int = MAX_BYTES
    asked: Mapping[str, frozenset[Entry]] = MappingProxyType({})
    schema_bytes: int = 2**20
    compression: Compression | None = None

    @property
    def tensor_bytes(self) -> int:
        """Of all tensors together, when decoded."""
        return self.max_bytes + sum(e.bytes for some in self.asked.values() for e in some)

    def check_frame(self, size: int) -> None:
        """Raise WireError if a frame is longer than any message within the bound."""
        most = self.tensor_bytes + self.tensor_bytes // 1024 + self.schema_bytes + HEADER_BYTES
        if size > most:
            raise WireError(f"frame of {size} bytes, this receiver takes {most}.")

    def check_announced(self, size: int) -> None:
        """Raise WireError if a packed schema is too long to be looked at."""
        if size > self.schema_bytes:
            raise WireError(f"schema of {size} bytes, this receiver takes {self.schema_bytes}.")

    def check_compression(self, declared: Compression) -> None:
        """Raise WireError if values were written in another way than was asked for."""
        asked = self.compression
        both_uniform = isinstance(asked, Uniform) and isinstance(declared, Uniform)
        if asked is not None and declared != asked and not both_uniform:
            raise WireError(f"values written as {brief(declared)}, asked for {brief(asked)}.")

    def check(self, schema: Schema) -> None:
        """Raise WireError unless all tensors of a schema are within the bound."""
        others = 0
        for part in schema.parts:
            asked = self.asked.get(part.name)
            if asked is None:
                others += sum(map(_room, part.entries))
            elif asked != frozenset(part.entries) and not _is_left_out(part):
                names = sorted({e.name for e in asked ^ {*part.entries}})
                raise WireError(
                    f"{part.name}: other tensors than were asked for, {', '.join(names[:3])}."
                )
        if others > self.max_bytes:
            raise WireError(
                f"schema: tensors of {others} bytes announced, "
                f"this receiver takes {self.max_bytes}."
            )


def _room(entry: Entry) -> int:
    """Bytes that a tensor may take to decode: an empty one may still have many rows."""
    return max(entry.bytes, *entry.shape[:1], 0)


def _is_left_out(part: Part) -> bool:
    """Whether nothing of a field is sent, as a mask may say."""
    return not part.entries and part.role not in {"dense", "exact"}
