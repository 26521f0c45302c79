"""The precisions of the wire as compressors: exact, 16 bits, or 8 bits with a scale per group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from fedsieve.core.keys import Key
from fedsieve.wire import Precision
from fedsieve.wire.bits import Pieces, Reader, runs_of
from fedsieve.wire.compressors.base import Floats
from fedsieve.wire.compressors.eden import Eden
from fedsieve.wire.compressors.groups import Groups
from fedsieve.wire.compressors.qsgd import Qsgd
from fedsieve.wire.compressors.signs import Sign
from fedsieve.wire.compressors.uniform import Uniform
from fedsieve.wire.precision import decode_floats, encode_floats


@dataclass(frozen=True)
class Fp32:
    """Every bit."""

    precision: ClassVar[Precision] = "fp32"

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        return encode_floats(list(arrays), self.precision, key)

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        flat = decode_floats(reader.rest(), sum(sizes), self.precision)
        return runs_of(flat, sizes)


@dataclass(frozen=True)
class Bf16(Fp32):
    """The nearest bfloat16."""

    precision = "bf16"


@dataclass(frozen=True)
class Fp16(Fp32):
    """The nearest float16."""

    precision = "fp16"


@dataclass(frozen=True)
class Int8(Fp32):
    """Eight bits with a scale for each 1024 values, rounded at random."""

    precision = "int8"


Values: TypeAlias = Fp32 | Bf16 | Fp16 | Int8 | Groups | Qsgd | Uniform | Sign | Eden
