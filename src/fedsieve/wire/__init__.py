"""Messages to bytes and back; no pickle, bounded decoding, one exception type."""

from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["fp32", "bf16", "fp16", "int8"]
