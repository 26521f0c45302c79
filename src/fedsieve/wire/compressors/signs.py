"""One bit a value: its sign, with a scale for each tensor.

Source   Bernstein et al., "signSGD", ICML 2018; with the mean magnitude as scale and error
         feedback: Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019.
Rule     x' = mean |x| sign(x). Biased: it wants error feedback.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsieve.core.keys import Key
from fedsieve.wire.bits import Pieces, Reader, runs_of
from fedsieve.wire.compressors.base import Floats, read_floats


@dataclass(frozen=True)
class Sign:
    """The sign of a value times the mean magnitude of its tensor."""

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        scales = np.array([np.abs(a).mean(dtype=np.float64) if a.size else 0 for a in arrays])
        negative = np.concatenate([np.signbit(array) for array in arrays])
        return [scales.astype("<f4").tobytes(), np.packbits(negative).tobytes()]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        scales, count = read_floats(reader, len(sizes)), sum(sizes)
        bits = np.unpackbits(np.frombuffer(reader.take(-(-count // 8)), np.uint8), count=count)
        reader.finish()
        signs = runs_of(np.float32(1) - 2 * bits.astype(np.float32), sizes)
        return [scale * sign for scale, sign in zip(scales, signs, strict=True)]
