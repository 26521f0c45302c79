"""Probabilities that arrive as bits drawn with them, sent as which of 256 drawn masks to take.

Sender and receiver know other probabilities p of the same bits, and draw the same masks from them.
The sender has q; it chooses a mask with odds near q / p, and sends its number. Positions are dealt
to blocks in turn, so many that a block's divergence of q from p is about BLOCK_BITS, and each takes
one byte: twice the divergence in all, however many bits there are. The block:

    DRAWN | key u64 | number of blocks | a byte for each: the number of its mask

Position j of B blocks is number j // B of block j % B. Masks 2r and 2r + 1 of a block come from
row r of 16-bit numbers in a Philox stream: a bit is set where the number, or its complement, is
below the threshold of its p. Block b has rows 128 b to 128 b + 127, each padded to whole steps of
16 numbers, so that the receiver draws one row a block and no more.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core import keys
from fedsieve.core.errors import WireError
from fedsieve.core.keys import Key, fold
from fedsieve.wire.bits import Bools, Reader, count_bytes
from fedsieve.wire.contexts import BINS, FINE_BINS, Bins, decode_likely, encode_likely
from fedsieve.wire.masks import DRAWN, Layout, encode_mask

BLOCK_BITS: Final = 4.0
LEAST: Final = 16  # positions of a block
_MASKS: Final = 256
_ROWS: Final = _MASKS // 2
_STEP: Final = 16  # numbers of one step of the generator
_AT_ONCE: Final = 1 << 14  # numbers drawn together by the receiver: whole steps
_TOGETHER: Final = 1 << 16  # and by the sender
_CERTAIN: Final = 2.0**-20  # q is at least so far from 0 and 1
_NEWTON_STEPS: Final = 5
# The middles of bins, in units of 2**-16: never certain.
_THRESHOLDS: Final = np.array(
    [round(65536 * math.sin(math.pi * (k + 0.5) / (2 * FINE_BINS)) ** 2) for k in range(FINE_BINS)],
    np.uint16,
)
Floats: TypeAlias = NDArray[np.floating[Any]]
Numbers: TypeAlias = NDArray[np.uint16]


def encode_drawn(wanted: Floats, bins: Sequence[Bins] | None, layout: Layout, key: Key) -> bytes:
    """A mask drawn with probabilities `wanted`: its number, or its bits where they take less.

    Raises:
        WireError: they are no probabilities.
    """
    if np.count_nonzero((wanted >= 0) & (wanted <= 1)) != wanted.size:
        raise WireError("mask: probabilities from 0 to 1 can be drawn, others were found.")
    if bins and wanted.size and (numbered := _numbered(wanted, np.concatenate(bins), key)):
        return numbered
    bits = keys.generator(fold(key, "bits")).random(wanted.size, np.float32) < wanted
    return encode_likely(bits, _coarse(bins)) if bins else encode_mask(bits, layout)


def decode_drawn(data: memoryview, bins: Sequence[Bins]) -> Bools:
    """The mask that was drawn, from the same bins.

    Raises:
        WireError: the bytes are neither numbers of masks nor bits.
    """
    reader = Reader(data, "mask")
    if reader.byte() != DRAWN:
        return decode_likely(data, _coarse(bins))
    key, flat = Key(int.from_bytes(reader.take(8), "little")), np.concatenate(bins)
    count = reader.count(_most(flat.size))
    if not count:
        raise reader.error("at least one block expected.")
    chosen = reader.take(count)
    reader.finish()
    kept, steps, at = np.empty(flat.size, np.bool_), _width(flat.size, count) // _STEP, 0
    stream = np.random.Philox(key=key)
    for block, number in enumerate(chosen):
        row = (block * _ROWS + number // 2) * steps
        stream.advance(row - at)
        at = row + steps
        for start in range(0, steps * _STEP, _AT_ONCE):
            numbers = _numbers(stream, min(_AT_ONCE, steps * _STEP - start))
            places = slice(block + start * count, block + (start + _AT_ONCE) * count, count)
            below = _THRESHOLDS[flat[places]]
            kept[places] = _masks(numbers[: below.size], below)[number % 2]
    return kept


def _numbered(wanted: Floats, flat: Bins, key: Key) -> bytes | None:
    """The numbers of chosen masks; None if there would be too many of them."""
    below = _THRESHOLDS[flat]
    p, q = below / 65536, np.clip(wanted.astype(np.float64), _CERTAIN, 1 - _CERTAIN)
    if_set, if_not = np.log(q / p), np.log((1 - q) / (1 - p))
    divergence = float(q @ if_set + (1 - q) @ if_not) / math.log(2)
    count = math.ceil(divergence / BLOCK_BITS) | 1  # odd: columns of tensors spread over blocks
    if count > _most(flat.size):
        return None
    ratio, candidates = if_set - if_not, fold(key, "candidates")
    means = np.array([q[block::count] @ ratio[block::count] for block in range(count)])
    scores = _scores(below, ratio.astype(np.float32), count, candidates)
    chosen = _choice(scores, means, fold(key, "choice"))
    head = bytes([DRAWN]) + candidates.to_bytes(8, "little") + count_bytes(count)
    return head + chosen.astype(np.uint8).tobytes()


def _scores(below: Numbers, ratio: Floats, count: int, key: Key) -> NDArray[np.float32]:
    """The logarithm of q / p of every mask of every block, but for a constant of each block."""
    width, stream = _width(below.size, count), np.random.Philox(key=key)
    below, ratio = _dealt(below, count, width), _dealt(ratio, count, width)
    scores = np.empty((count, _ROWS, 2), np.float32)
    rows = min(max(_TOGETHER // width, 1), _ROWS)
    blocks = max(_TOGETHER // (_ROWS * width), 1)
    for block, row in product(range(0, count, blocks), range(0, _ROWS, rows)):
        some = scores[block : block + blocks, row : row + rows]
        numbers = _numbers(stream, some.shape[0] * some.shape[1] * width)
        numbers = numbers.reshape(*some.shape[:2], width)
        masks = _masks(numbers, below[block : block + blocks, None])
        gains = ratio[block : block + blocks, :, None]
        for side, mask in enumerate(masks):
            some[..., side] = (mask.astype(np.float32) @ gains)[..., 0]
    return scores.reshape(count, _MASKS)


def _dealt(values: NDArray[Any], count: int, width: int) -> NDArray[Any]:
    """Positions by block, 0 behind the last."""
    padded = np.zeros((width, count), values.dtype)
    padded.reshape(-1)[: values.size] = values
    return np.ascontiguousarray(padded.T)


def _choice(scores: NDArray[np.float32], means: Floats, key: Key) -> NDArray[np.intp]:
    """A mask of each block, drawn with odds (q / p)^b such that the mean score is that under q.

    With b = 1 masks lie too near to p: few are as far from it as those of q.
    """
    top = scores.max(axis=1, keepdims=True)
    scores, goals = scores - top, means.astype(np.float32)[:, None] - top
    b = np.ones_like(goals)
    for _ in range(_NEWTON_STEPS):
        odds = np.exp(b * scores)
        odds /= odds.sum(axis=1, keepdims=True)
        mean = (odds * scores).sum(axis=1, keepdims=True)
        slope = (odds * (scores - mean) ** 2).sum(axis=1, keepdims=True)
        b = np.clip(b + (goals - mean) / np.maximum(slope, 1e-9), b / 2, 2 * b)
    sums = np.exp(b * scores).cumsum(axis=1)
    picks = keys.generator(key).random((len(sums), 1), np.float32) * sums[:, -1:]
    chosen: NDArray[np.intp] = np.minimum((sums <= picks).sum(axis=1), _MASKS - 1)
    return chosen


def _coarse(fine: Sequence[Bins]) -> list[Bins]:
    """Bins of bits that are coded."""
    return [bins // (FINE_BINS // BINS) for bins in fine]


def _most(size: int) -> int:
    """How many blocks there may be."""
    return max(size // LEAST, 1)


def _width(size: int, count: int) -> int:
    """Numbers of a row: as many as the largest block has positions, in whole steps."""
    return -(-size // (count * _STEP)) * _STEP


def _numbers(stream: np.random.Philox, count: int) -> Numbers:
    return stream.random_raw(count // 4).astype("<u8", copy=False).view("<u2")


def _masks(numbers: Numbers, below: Numbers) -> tuple[Bools, Bools]:
    return numbers < below, numbers > ~below  # the same as ~numbers < below
