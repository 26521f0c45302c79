"""A random rotation, then the best levels for normal values.

Source   Vargaftik et al., "DRIVE", NeurIPS 2021 (1 bit); "EDEN", ICML 2022.
Rule     Blocks x of B values are rotated by a randomised Hadamard matrix, R = H D: coordinates of
         R x are nearly normal with variance |x|^2 / B. Each is replaced by the nearest of 2^b
         Lloyd-Max levels of N(0, 1), c; the receiver has  x' = S R^T c.
         unbiased: S = |x|^2 / <R x, c>;  otherwise of least error: S = <R x, c> / |c|^2.
         Error of the unbiased one in the limit: |x|^2 times pi/2 - 1, 0.133, 0.036, 0.0096 for one
         to four bits.
Differs  Blocks of 4096 have a scale each, in place of one for the whole message; the rest is cut
         into powers of two, at least 64. One Hadamard rotation of values of which a few stand far
         out is not quite unbiased (squared, 0.2 % of |x|^2); two are (`rotations`). Levels of more
         than one bit are entropy-coded with the probabilities that normal values give them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

from fedsieve.core import keys
from fedsieve.core.keys import Key, fold
from fedsieve.core.options import in_range, option
from fedsieve.wire.bits import Pieces, Reader, runs_of
from fedsieve.wire.compressors.base import Floats, read_floats
from fedsieve.wire.entropy import AnsReader, AnsWriter
from fedsieve.wire.integers import Bytes, fitting, joined, joint, split

BLOCK, SMALLEST = 4096, 64
_TOGETHER = 16  # blocks that stay in the cache
# Levels above 0 and their borders, of the quantiser of least error for N(0, 1) (Max 1960).
LEVELS = {
    1: (0.7978845608,),
    2: (0.4527800398, 1.5104176087),
    3: (0.2450941789, 0.7560052489, 1.3439092613, 2.1519457144),
    4: (0.1283950299, 0.3880482994, 0.6567591241, 0.9423404478, 1.2562309480, 1.6180646059,
        2.0690172213, 2.7326383152),
}  # fmt: skip


@dataclass(frozen=True)
class Eden:
    """Rotated, at one to four bits a value."""

    bits: int = option(4, "of a value, before coding")
    unbiased: bool = option(True, "scale for no bias; false: for the least error")
    rotations: int = option(1, "2 where a few values stand far out: no bias there either")

    def __post_init__(self) -> None:
        in_range("eden: bits", self.bits, 1, 4)
        in_range("eden: rotations", self.rotations, 1, 4)

    def encode(self, arrays: Sequence[Floats], key: Key) -> Pieces:
        flat = np.concatenate(arrays) if len(arrays) != 1 else arrays[0]
        levels = np.array(_all_levels(self.bits), np.float32)
        borders = (levels[1:] + levels[:-1]) / 2
        scales, chosen = list[Floats](), list[Bytes]()
        for part, blocks, width in _parts(flat.size):
            rows = _padded(flat[part], blocks, width)
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
            rotated = self._rotated(rows, key)
            unit = rotated * (math.sqrt(width) / np.where(norms > 0, norms, 1))[:, None]
            index = np.zeros(unit.shape, np.uint8)
            for border in borders:
                index += unit > border
            values = levels.take(index)
            inner = np.einsum("ij,ij->i", rotated, values)
            if self.unbiased:
                scale = norms**2 / np.where(inner > 0, inner, 1)
            else:
                scale = inner / np.einsum("ij,ij->i", values, values)
            scales.append(scale.astype(np.float32))
            chosen.append(index.reshape(-1))
        return [
            np.concatenate(scales).astype("<f4").tobytes(),
            self._packed(np.concatenate(chosen)),
        ]

    def decode(self, reader: Reader, sizes: Sequence[int], key: Key) -> list[Floats]:
        total = sum(sizes)
        parts = list(_parts(total))
        scales = read_floats(reader, sum(blocks for _, blocks, _ in parts))
        index = self._unpacked(reader, sum(blocks * width for _, blocks, width in parts))
        levels, flat, at, block = _all_levels(self.bits), np.empty(total, np.float32), 0, 0
        for part, blocks, width in parts:
            values = np.array(levels, np.float32).take(index[at : at + blocks * width])
            rows = values.reshape(blocks, width) * scales[block : block + blocks, None]
            flat[part] = self._rotated_back(rows, key).reshape(-1)[: part.stop - part.start]
            at, block = at + blocks * width, block + blocks
        return runs_of(flat, sizes)

    def _rotated(self, rows: Floats, key: Key) -> Floats:
        """H D x of every row, as often as asked."""
        for number in range(self.rotations):
            rows = _hadamard(_turned(rows, fold(key, number)))
        return rows

    def _rotated_back(self, rows: Floats, key: Key) -> Floats:
        for number in reversed(range(self.rotations)):
            rows = _turned(_hadamard(rows), fold(key, number))
        return rows

    def _packed(self, index: Bytes) -> bytes:
        if self.bits == 1:
            return np.packbits(index).tobytes()
        ans = AnsWriter()
        ans.symbols(joined(index, 2**self.bits), _model(self.bits))
        return ans.finish()

    def _unpacked(self, reader: Reader, count: int) -> Bytes:
        if self.bits == 1:
            packed = np.frombuffer(reader.take(-(-count // 8)), np.uint8)
            reader.finish()
            return np.unpackbits(packed, count=count)
        base = 2**self.bits
        digits = fitting(base)
        ans = AnsReader(reader.rest(), "eden")
        symbols = ans.small_symbols(-(-count // digits), _model(self.bits))
        ans.finish()
        return split(symbols, base, digits)[:count]


def _all_levels(bits: int) -> tuple[float, ...]:
    return (*(-x for x in reversed(LEVELS[bits])), *LEVELS[bits])


@lru_cache(maxsize=4)
def _model(bits: int) -> tuple[float, ...]:
    """Weights of symbols: how often N(0, 1) falls to each level, in 16 bits."""
    levels = _all_levels(bits)
    borders = [
        -math.inf,
        *((a + b) / 2 for a, b in pairwise(levels)),
        math.inf,
    ]
    below = [(1 + math.erf(border / math.sqrt(2))) / 2 for border in borders]
    shares = tuple(round((b - a) * 2**16) for a, b in pairwise(below))
    return joint(shares, fitting(2**bits))


def _parts(size: int) -> Iterator[tuple[slice, int, int]]:
    """Slices of a vector, and into how many blocks of which width they are cut."""
    at, width = 0, BLOCK
    while at < size:
        while width > SMALLEST and width > size - at:
            width //= 2
        blocks = max((size - at) // width, 1)
        blocks = min(blocks, _TOGETHER)
        yield slice(at, min(at + blocks * width, size)), blocks, width
        at += blocks * width


def _padded(values: Floats, blocks: int, width: int) -> Floats:
    if values.size == blocks * width:
        return values.reshape(blocks, width)
    full = np.zeros(blocks * width, np.float32)
    full[: values.size] = values
    return full.reshape(blocks, width)


def _turned(rows: Floats, key: Key) -> Floats:
    """D x: random signs, the same in every row."""
    return (rows.view(np.uint32) ^ _signs(key, rows.shape[1])).view(np.float32)


@lru_cache(maxsize=8)
def _signs(key: Key, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Random sign bits of a row."""
    bits = np.unpackbits(np.frombuffer(keys.generator(key).bytes(width // 8), np.uint8))
    return bits.astype(np.uint32) << np.uint32(31)


def _hadamard(rows: Floats) -> Floats:
    """The rows times a Hadamard matrix of orthonormal rows, as a product of two small ones."""
    blocks, width = rows.shape
    left = 2 ** (width.bit_length() // 2)
    table = torch.from_numpy(np.ascontiguousarray(rows)).view(blocks, left, width // left)
    turned = (table @ _matrix(width // left)).transpose(1, 2) @ _matrix(left)
    return turned.transpose(1, 2).reshape(blocks, width).numpy()


@lru_cache(maxsize=16)
def _matrix(size: int) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)
