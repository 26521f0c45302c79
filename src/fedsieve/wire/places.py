"""Places of set bits as bytes, with numpy and whole numbers alone.

A few places among many are one number, their rank among all such sets, at a cost of exactly
log2(size choose count) bits. More of them are gaps in Golomb-Rice codes.
"""

from math import comb, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsieve.wire.bits import Bools, Ints, Reader, count_bytes

FEW: Final = 64  # so many places at most make a rank: its numbers have a hundred bytes or two
_BLOCK: Final = 4096  # positions looked at together; more would take more memory
_UNARY: Final = 1024  # unary bits read together, likewise


def rank_bytes(*sets: tuple[Ints, int]) -> bytes:
    """Sets of rising places, each with the size it is taken from, as one number."""
    number, ways = 0, 1
    for places, size in sets:
        each = comb(size, places.size)
        rank = sum(comb(place, nth) for nth, place in enumerate(places.tolist(), 1))
        number, ways = number * each + rank, ways * each
    return number.to_bytes(_bytes_for(ways), "little")


def read_ranks(reader: Reader, *sets: tuple[int, int]) -> list[Ints]:
    """The sets `rank_bytes` was given, from the number of places of each and its size."""
    each = [comb(size, count) for count, size in sets]
    ways = prod(each)
    number, found = int.from_bytes(reader.take(_bytes_for(ways)), "little"), []
    if number >= ways:
        raise reader.error(f"no rank of {sets} places and sizes is {number}.")
    for (count, size), own in zip(reversed(sets), reversed(each), strict=True):
        number, rank = divmod(number, own)
        found.append(_places(rank, size, count))
    return found[::-1]


def _bytes_for(ways: int) -> int:
    return ((ways - 1).bit_length() + 7) // 8


def _places(rank: int, size: int, count: int) -> Ints:
    places = np.empty(count, np.intp)
    for nth in range(count, 0, -1):
        places[nth - 1] = size = _last_place(rank, size, nth)
        rank -= comb(size, nth)
    return places


def _last_place(rank: int, size: int, nth: int) -> int:
    """The largest place with (place choose nth) <= rank; it is below `size`."""
    # (x choose k) is about (x - (k - 1) / 2) ** k / k!; the loops make up for the difference.
    middle = (nth - 1) / 2
    place = int((size - middle) * (rank / comb(size, nth)) ** (1 / nth) + middle)
    while comb(place, nth) > rank:
        place -= 1
    while comb(place + 1, nth) <= rank:
        place += 1
    return place


def numbers_among(bits: Bools, places: Ints) -> Ints:
    """How many bits are set before each of some rising places."""
    starts = [0, *places.tolist()[:-1]]
    steps = [np.count_nonzero(bits[a:b]) for a, b in zip(starts, places.tolist(), strict=False)]
    return np.cumsum(steps, dtype=np.intp)


def places_among(bits: Bools, numbers: Ints, *, is_set: bool) -> Ints:
    """The places of the bits that are set (or not), by their numbers among those."""
    starts = np.arange(0, bits.size, _BLOCK)
    ones = [np.count_nonzero(bits[start : start + _BLOCK]) for start in starts]
    sizes = np.minimum(bits.size - starts, _BLOCK)
    ends = np.cumsum(ones if is_set else sizes - ones)
    places = np.empty(numbers.size, np.intp)
    for i, block in enumerate(np.searchsorted(ends, numbers, "right")):
        inside = np.flatnonzero(bits[starts[block] : starts[block] + _BLOCK] == is_set)
        places[i] = starts[block] + inside[numbers[i] - ends[block]]
    return places


def rice_bytes(bits: Bools, *, inverted: bool) -> bytes:
    """Gaps between the set bits (`inverted`: the others), high parts in unary, low parts as planes.

    shift | inverted << 7, number of gaps, length of the unary bits, unary bits, low bits
    """
    positions = np.flatnonzero(~bits if inverted else bits)
    gaps = np.diff(positions, prepend=-1) - 1
    count = gaps.size
    most = (bits.size // count).bit_length() - 1  # count << shift <= size, as the reader expects
    near = max(int(gaps.sum()) // count, 1).bit_length() - 1
    shifts = [s for s in (near - 1, near, near + 1) if 0 <= s <= most]
    shift = min(shifts, key=lambda s: s * count + int((gaps >> s).sum()))
    ends = np.cumsum((gaps >> shift) + 1)
    unary = np.zeros(ends[-1], np.bool_)
    unary[ends - 1] = True
    low = (gaps >> np.arange(shift)[:, None]) & 1
    head = bytes([shift | inverted << 7]) + count_bytes(count) + count_bytes(unary.size)
    return head + np.packbits(unary).tobytes() + np.packbits(low.astype(np.bool_)).tobytes()


def read_rice(reader: Reader, size: int) -> Bools:
    """The bits `rice_bytes` was given; no more than half of them can be set (or not)."""
    head = reader.byte()
    shift, inverted = head & 127, bool(head >> 7)
    count = reader.count(size // 2)
    if count < 1 or count << shift > size:
        raise reader.error(f"{count} gaps of {shift} low bits do not fit {size} positions.")
    length = reader.count(count + (size >> shift))
    unary, low = (_packed(reader, bits) for bits in (length, shift * count))
    kept, found, end, place = np.full(size, inverted), 0, -1, -1
    for start in range(0, length, _UNARY):  # all gaps at once would take more memory than the mask
        ends = start + np.flatnonzero(bit_range(unary, start, min(start + _UNARY, length)))
        if not ends.size:
            continue
        if found + ends.size > count:
            raise reader.error(f"{count} gaps in {length} unary bits expected, found more.")
        gaps = np.diff(ends, prepend=end) - 1 << shift
        for plane in range(shift):
            first = plane * count + found
            gaps |= bit_range(low, first, first + ends.size).astype(np.intp) << plane
        gaps += 1
        places = place + np.cumsum(gaps, out=gaps)
        found, end, place = found + ends.size, int(ends[-1]), int(places[-1])
        if place >= size:
            raise reader.error(f"{size} positions expected, found a bit at {place}.")
        kept[places] = not inverted
    if found != count or end + 1 != length:
        raise reader.error(f"{count} gaps in {length} unary bits expected, found {found}.")
    return kept


def _packed(reader: Reader, bits: int) -> NDArray[np.uint8]:
    return np.frombuffer(reader.take((bits + 7) // 8), np.uint8)


def bit_range(packed: NDArray[np.uint8], start: int, end: int) -> NDArray[np.uint8]:
    """Bits from `start` to `end`, highest of each byte first."""
    first = start // 8
    return np.unpackbits(packed[first : (end + 7) // 8])[start - 8 * first : end - 8 * first]
