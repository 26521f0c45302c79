"""Shared pieces of the entropy coders: bounded reading, short counts, probability levels, ANS.

Probabilities travel as one-byte levels on an integer grid, and every table is computed from them
in integers, so both ends hold the same table by construction. The numbers handed to constriction
are those integers as floats; `perfect=False` fixes how it rounds them.
"""

from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsieve.core.errors import WireError

try:
    import constriction  # type: ignore[import-untyped,unused-ignore]
except ImportError:  # the coders then use numpy alone, and cannot read what was made with it
    constriction = None

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.integer[Any]]

# Level 0 is 0; level j > 0 is a float of 3 mantissa bits: 8 values an octave, 6 % apart at most.
LEVELS: Final = (0, *((8 + j % 8) << (j // 8) for j in range(255)))
HALF: Final = 127  # as a share of SCALE, this level is one half
SCALE: Final = 2 * LEVELS[HALF]
_ONES = np.bitwise_count(np.arange(256, dtype=np.uint8))


def level_of(value: int, most: int = 255) -> int:
    """The level nearest to `value`; only 0 has level 0."""
    if value < 8:
        return int(value > 0)
    shift = value.bit_length() - 4
    return min(8 * shift + ((value + (1 << shift >> 1)) >> shift) - 7, most)


def count_bytes(value: int) -> bytes:
    """A count, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """Takes pieces off a buffer, never past its end."""

    def __init__(self, data: memoryview | bytes, what: str) -> None:
        self._data = memoryview(data)
        self._what = what

    def __len__(self) -> int:
        return len(self._data)

    def error(self, text: str) -> WireError:
        return WireError(f"{self._what}: {text}")

    def take(self, size: int) -> memoryview:
        if size > len(self._data):
            raise self.error(f"{size} bytes expected, {len(self._data)} left.")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def rest(self) -> memoryview:
        return self.take(len(self._data))

    def byte(self) -> int:
        return self.take(1)[0]

    def count(self, most: int) -> int:
        """A count of at most `most`."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
        if value > most:
            raise self.error(f"a count of at most {most} expected, found {value}.")
        return value

    def finish(self) -> None:
        if len(self._data):
            raise self.error(f"{len(self._data)} bytes are left over.")


def has_ans() -> bool:
    return constriction is not None


class AnsWriter:
    """Collects symbols with their models; `finish` codes them all into one stream."""

    def __init__(self) -> None:
        self._steps: list[tuple[NDArray[np.int32], Any]] = []

    def symbols(self, symbols: Ints, weights: tuple[int, ...]) -> None:
        """Symbols 0, 1, ... with probabilities in proportion to integer weights."""
        self._steps.append((symbols.astype(np.int32), _model(weights)))

    def bits(self, bits: Bools) -> int:
        """Bits that are alike but for their density; returns the byte `AnsReader.bits` needs."""
        ones = int(np.count_nonzero(bits))
        inverted = 2 * ones > bits.size
        minor = bits.size - ones if inverted else ones
        level = level_of(max(minor * SCALE // max(bits.size, 1), minor > 0), HALF)
        if level:
            packed = np.packbits(bits)
            if inverted:  # the padding behind the end stays 0
                packed = np.packbits(~bits)
            self._steps.append((packed.astype(np.int32), _byte_model(level)))
        return level | inverted << 7

    def finish(self) -> bytes:
        coder = constriction.stream.stack.AnsCoder()
        for symbols, model in reversed(self._steps):
            coder.encode_reverse(symbols, model)
        words: NDArray[np.uint32] = coder.get_compressed()
        return words.astype("<u4").tobytes().rstrip(b"\0")


class AnsReader:
    """Reads a stream of AnsWriter; the caller knows what comes, how much, and with what model."""

    def __init__(self, data: memoryview, what: str) -> None:
        if constriction is None:
            raise WireError(f"{what}: made with constriction, which is not installed here.")
        self._what = what
        padded = bytes(data) + bytes(-len(data) % 4)
        try:
            words = np.frombuffer(padded, "<u4").astype(np.uint32)
            self._coder = constriction.stream.stack.AnsCoder(words)
        except ValueError as error:
            raise WireError(f"{what}: not an ANS stream: {error}") from error

    def symbols(self, count: int, weights: tuple[int, ...]) -> NDArray[np.int32]:
        decoded: NDArray[np.int32] = self._coder.decode(_model(weights), count)
        return decoded

    def bits(self, count: int, level: int) -> Bools:
        inverted, level = level >> 7, level & 127
        if not level:
            return np.full(count, bool(inverted))
        symbols = self._coder.decode(_byte_model(level), (count + 7) // 8).astype(np.uint8)
        if inverted:
            np.invert(symbols, out=symbols)
        return np.unpackbits(symbols, count=count).view(np.bool_)

    def finish(self) -> None:
        if not self._coder.is_empty():
            raise WireError(f"{self._what}: the ANS stream does not end where its symbols do.")


def _model(weights: tuple[int, ...]) -> Any:
    table = np.array(weights, np.float64)
    return constriction.stream.model.Categorical(table, perfect=False)


@lru_cache(maxsize=HALF)
def _byte_model(level: int) -> Any:
    """Model of a byte of 8 independent bits, each 1 with probability LEVELS[level] / SCALE."""
    one, zero = LEVELS[level], SCALE - LEVELS[level]
    by_ones = np.array([float(one**k * zero ** (8 - k)) for k in range(9)])
    # A lazy model gives the same bits; it is three times faster where most bytes are 0.
    rare = 50 * one < SCALE
    model = constriction.stream.model.Categorical
    return model(by_ones[_ONES], perfect=False, lazy=rare)
