"""Lossy forms of float32 values, one file each: what is kept of them, and how it is written."""

from typing import Final, TypeAlias, get_args

from fedsieve.wire.compressors.dense import Fp32, Values
from fedsieve.wire.compressors.low_rank import LowRank
from fedsieve.wire.compressors.sparse import Beyond, RandK, Ternary, TopK

Compression: TypeAlias = Values | TopK | RandK | Beyond | Ternary | LowRank
KINDS: Final = get_args(Compression)
EXACT: Final = Fp32()
