"""Lossy forms of float32 values, one file each: what is kept of them, and how it is written."""

from typing import Final, TypeAlias, get_args

from fedsieve.wire import Precision
from fedsieve.wire.compressors.dense import Bf16, Fp16, Fp32, Int8, Values
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.compressors.low_rank import LowRank
from fedsieve.wire.compressors.sparse import Beyond, RandK, Ternary, TopK

Compression: TypeAlias = Values | TopK | RandK | Beyond | Ternary | LowRank | Lattice
KINDS: Final = get_args(Compression)
EXACT: Final = Fp32()
NAMED: Final[dict[Precision, Compression]] = {
    "fp32": EXACT, "bf16": Bf16(), "fp16": Fp16(), "int8": Int8(),
}  # fmt: skip
