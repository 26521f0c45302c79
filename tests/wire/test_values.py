"""Values: bit-exact round trips, closeness to the memoryless limit, refusal of malformed bytes."""

import contextlib
import tracemalloc

import numpy as np
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsieve.core.errors import WireError
from fedsieve.wire import bits, halves, masks, symbols, values
from fedsieve.wire.values import TYPES, decode_values
from wire.messages import damaged


def encode_values(array, kind="f4"):
    return b"".join(values.encode_values(array, kind))


KINDS = ["f4", "bf", "f2", "i1"]
PATTERNS = {"f4": np.uint32, "bf": np.uint16, "f2": np.uint16, "i1": np.uint8}


def there_and_back(array, kind):
    data = encode_values(array, kind)
    found = decode_values(memoryview(data), array.size, kind)
    assert found.dtype == TYPES[kind]
    assert found.tobytes() == array.tobytes()
    return data


def bfloat16(array):
    """Round to nearest even, as 16-bit patterns."""
    pattern = array.view(np.uint32)
    return ((pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16).astype(np.uint16)


def as_kind(array, kind):
    match kind:
        case "f4":
            return array
        case "bf":
            return bfloat16(array)
        case "f2":
            return array.astype(np.float16).view(np.uint16)
        case _:
            return np.rint(array / np.abs(array).max() * 127).astype(np.int8)


def entropy(symbols):
    counts = np.unique(symbols, return_counts=True)[1]
    share = counts / counts.sum()
    return -float(share @ np.log2(share))


def limit_bits(array, kind):
    """Memoryless limit: entropy of the exponents, and sign and mantissa as they are."""
    match kind:
        case "f4":
            return array.size * (entropy(array.view(np.uint32) >> 23 & 255) + 24)
        case "bf":
            return array.size * (entropy(array >> 7 & 255) + 8)
        case "f2":
            return array.size * (entropy(array >> 10 & 31) + 11)
        case _:
            return array.size * entropy(array)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_bit_pattern_comes_back(kind, data):
    size = data.draw(st.integers(0, 200))
    pattern = data.draw(hnp.arrays(PATTERNS[kind], size))
    there_and_back(pattern.view(TYPES[kind]), kind)


@pytest.mark.parametrize("kind", KINDS)
@given(
    size=st.integers(0, 5000),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.1, 3.0, 30.0]),
    zeros=st.sampled_from([0.0, 0.01, 0.08, 0.3, 0.8, 0.95, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_values_of_any_spread_with_zeros_come_back(kind, size, seed, spread, zeros):
    rng = np.random.default_rng(seed)
    array = rng.normal(size=size) * np.exp(spread * rng.normal(size=size))
    array[rng.random(size) < zeros] = 0
    array = np.clip(array, -6e4, 6e4).astype(np.float32)
    there_and_back(as_kind(np.append(array, np.float32(1)), kind), kind)


@pytest.mark.parametrize("zeros", [0.03, 0.08, 0.12, 0.13, 0.5, 0.87, 0.88, 0.95])
@pytest.mark.parametrize("size", [1023, 1025, 9000, 140_001])
@pytest.mark.parametrize("kind", ["f4", "bf", "f2"])
def test_any_share_of_zeros_comes_back(kind, size, zeros):
    rng = np.random.default_rng(size)
    array = rng.normal(size=size).astype(np.float32)
    there_and_back(as_kind(np.where(rng.random(size) < zeros, 0, array), kind), kind)
    there_and_back(as_kind(np.where(np.arange(size) < zeros * size, 0, array), kind), kind)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 131071, 131072, 131073, 300001])
@pytest.mark.parametrize("kind", KINDS)
def test_every_size_comes_back(kind, size):
    array = np.random.default_rng(size).normal(size=size + 1).astype(np.float32)
    data = there_and_back(as_kind(array, kind)[:size], kind)
    assert len(data) <= size * np.dtype(TYPES[kind]).itemsize + 1 + size // 131072


SPECIAL = np.array(
    [0, 1 << 31, 1, 0x007FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF],
    np.uint32,
)  # +0, -0, denormals, infinities, NaN quiet and signalling with payloads


@pytest.mark.parametrize("share", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["f4", "bf", "f2"])
def test_special_values_come_back_bit_by_bit(kind, share):
    rng = np.random.default_rng(4)
    pattern = as_kind(rng.normal(size=20000).astype(np.float32), kind).view(PATTERNS[kind])
    special = SPECIAL if kind == "f4" else (SPECIAL >> 16 | SPECIAL & 1).astype(np.uint16)
    places = rng.random(pattern.size) < share
    pattern[places] = rng.choice(special, np.count_nonzero(places))
    there_and_back(pattern.view(TYPES[kind]), kind)


def trained(rng):
    """Like a trained LeNet: layers of different scale, most weights near 0."""
    shapes = ((500, 25), (25000, 500), (400000, 800), (5000, 500))
    layers = [rng.standard_t(8, n) / np.sqrt(fan) for n, fan in shapes]
    return np.concatenate(layers).astype(np.float32)


def selected(rng, share=0.05):
    weights = trained(rng)
    size = np.abs(weights)
    return weights[size >= np.quantile(size, 1 - share)]


def update(rng):
    weights = trained(rng)
    return (weights + 0.001 * rng.standard_t(4, weights.size).astype(np.float32)) - weights


DRAWS = {
    "trained": trained,
    "selected": selected,
    "few selected": lambda rng: selected(rng, 0.005),
    "update": update,
    "normal": lambda rng: rng.normal(size=430500).astype(np.float32),
    "Laplace": lambda rng: rng.laplace(size=430500).astype(np.float32),
    "few normal": lambda rng: rng.normal(size=2000).astype(np.float32),
    "few Laplace": lambda rng: rng.laplace(size=2000).astype(np.float32),
    "some Laplace": lambda rng: rng.laplace(size=20000).astype(np.float32),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draw", DRAWS)
def test_values_take_at_most_three_percent_more_than_the_limit(kind, draw):
    array = as_kind(DRAWS[draw](np.random.default_rng(6)), kind)
    assert 8 * len(there_and_back(array, kind)) <= 1.03 * limit_bits(array, kind)


def test_int8_values_may_take_less_than_a_bit():
    array = (np.random.default_rng(0).random(100_000) < 0.02).astype(np.int8)
    assert 8 * len(there_and_back(array, "i1")) <= 1.03 * limit_bits(array, "i1")
    assert limit_bits(array, "i1") < 0.15 * array.size


@pytest.mark.parametrize("kind", ["f4", "bf", "f2"])
def test_zeros_in_a_dense_array_cost_their_places_only(kind):
    rng = np.random.default_rng(8)
    kept = rng.random(200_000) < 0.05
    dense = as_kind(np.where(kept, rng.normal(size=kept.size), 0).astype(np.float32), kind)
    # Of 16-bit floats a few more round to 0, which only shortens the values.
    limit = kept.size * entropy(kept) + limit_bits(dense[kept], kind)
    assert 8 * len(there_and_back(dense, kind)) <= 1.03 * limit


def test_a_chunk_is_as_derived_by_hand():
    # 1.5 is 0 01111111 1000...: step 0b01111111_1000; -1 is 8 steps below, with the sign apart.
    array = np.array([1.5, -1.0, 1.5], np.float32)
    steps = zstd.compress(bytes([0, 8, 0]))
    nibbles = bytes([0b1000_0000, 0b0000_0000])  # two values a byte, the first one lowest
    top = (0b01111111_1000).to_bytes(2, "little")
    data = bytes([halves.FINE]) + top + bytes([len(steps), 0]) + steps + nibbles + bytes(6)
    assert decode_values(memoryview(data), 3).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("kept", "order"),
    [
        ([0, 1, 1, 0, 1, 0, 0, 0], [0, 1, 2]),  # as they stand
        ([0, 1, 1, 1, 1, 1, 1, 1], [6, 0, 1, 2, 3, 4, 5]),  # the last one fills the gap
    ],
)
def test_values_between_zeros_are_gathered_as_derived_by_hand(kept, order):
    array = np.array(kept, np.float32)
    array[array != 0] = present = np.arange(1, sum(kept) + 1, dtype=np.float32)
    mask = zstd.compress(bytes([int("".join(map(str, kept)), 2)]))  # highest bit first
    data = bytes([values.HOLES, len(mask)]) + mask + bytes([values.RAW])
    data += present[order].tobytes()
    assert decode_values(memoryview(data), 8).tolist() == array.tolist()


def test_tiny_arrays_stay_raw():
    assert encode_values(np.array([1.0], np.float32)) == b"\0\0\0\x80\x3f"
    assert encode_values(np.array([], np.float32)) == b""


def test_frames_once_written_stay_readable():
    # Written by the first version of this coder; a failure means that the format has changed.
    data = bytes.fromhex("0500042f2f2f2f304d3245c3e5b827398c13f7ebdc65dd5a2705c41ec8fa9d46169ea770")
    assert decode_values(memoryview(data), 64, "i1").tolist() == [i % 9 - 4 for i in range(64)]


@pytest.mark.parametrize(
    ("array", "kind"), [(np.zeros(3), "f4"), (np.zeros((2, 2), np.int8), "i1")]
)
def test_arrays_of_another_type_or_shape_are_refused(array, kind):
    with pytest.raises(WireError, match="type and dimensions"):
        encode_values(array, kind)


def test_damaged_bytes_are_refused_or_give_values_of_the_right_size():
    rng = np.random.default_rng(10)
    dense = rng.normal(size=9001).astype(np.float32)
    dense[::301] *= np.float32(1e-8)  # far steps
    sparse = np.where(rng.random(9001) < 0.2, dense, np.float32(0))
    sparser = np.where(rng.random(9001) < 0.05, dense, np.float32(0))
    wild = rng.integers(0, 2**32, 9001, np.uint32).view(np.float32)
    frames = [(encode_values(a), "f4") for a in (dense, sparse, sparser, wild)]
    frames += [
        (encode_values(as_kind(a, k), k), k) for a in (dense, sparse) for k in ("bf", "f2", "i1")
    ]
    frames.append((encode_values(np.arange(9001).astype(np.int8), "i1"), "i1"))
    frames.append((encode_values((rng.random(9001) < 0.02).astype(np.int8), "i1"), "i1"))
    frames.append((encode_values(as_kind(dense[:8000], "i1"), "i1"), "i1"))
    assert {data[0] for data, _ in frames} == set(range(values.HOLES + 1))  # all coders
    refused = 0
    for data, kind in frames * 300:
        try:
            found = decode_values(damaged(rng, data), dense.size, kind)
        except WireError:
            refused += 1
        else:
            assert found.dtype == TYPES[kind]
            assert found.shape == dense.shape
    assert 0 < refused < 300 * len(frames)


def test_damaged_bytes_never_take_more_than_twice_the_dense_size():
    rng = np.random.default_rng(10)
    dense = rng.normal(size=300_000).astype(np.float32)
    frames = [encode_values(a) for a in (dense, np.where(rng.random(dense.size) < 0.3, dense, 0))]
    peaks = []
    for data in frames * 30:
        bad = damaged(rng, data)
        tracemalloc.start()
        with contextlib.suppress(WireError):
            decode_values(bad, dense.size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) <= 2 * dense.nbytes


def test_a_bomb_is_stopped_at_the_expected_size():
    bomb = zstd.compress(bytes(1 << 26), 19)
    size = len(bomb).to_bytes(1, "little") if len(bomb) < 128 else bits.count_bytes(len(bomb))
    data = bytes([symbols.ZSTD]) + size + bomb
    tracemalloc.start()
    with pytest.raises(WireError, match=r"1000 symbols expected|too much memory"):
        decode_values(memoryview(data), 1000, "i1")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_sparse_chunks_do_not_nest():
    nested = bytes([values.SPARSE, 1, 1]) * 5000  # the mask FULL, again and again
    with pytest.raises(WireError, match=r"coders \[0, 1, 2\] expected, found 3"):
        decode_values(memoryview(nested), 10)


def frame(kind, symbols, top=0, far=0, rest=b""):
    coded = zstd.compress(bytes(symbols))
    head = bytes([kind]) + top.to_bytes(2, "little") + bits.count_bytes(len(coded)) + bytes([far])
    return head + coded + rest


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"", "f4", "1 bytes expected, 0 left"),
        (b"\x09", "f4", "expected, found 9"),
        (b"\x04", "bf", r"coders \[0, 1, 2, 3, 7\] expected, found 4"),
        (b"\x01", "i1", "expected, found 1"),
        (bytes([0, 1, 2, 3]), "f4", "16 bytes expected, 3 left"),
        (bytes([0]) + bytes(17), "f4", "1 bytes are left over"),
        (frame(1, [0, 0, 0]), "bf", "frame of 4 symbols expected"),
        (frame(1, [0] * 5), "bf", "frame of 4 symbols expected"),
        (frame(1, [0, 255, 0, 0], rest=bytes(2)), "bf", "1 far steps expected, found 0"),
        (frame(1, [0] * 4, far=1), "bf", "at most 0 expected, found 1"),
        (frame(2, [0] * 4, far=1), "bf", "at most 0 expected, found 1"),
        (frame(1, [0] * 4, rest=b"1"), "bf", "2 bytes expected, 1 left"),
        (bytes([2, 0, 0, 4, 0, 1, 2, 3, 4, 5]), "bf", "not a zstd frame"),
        (bytes([5, 0, 129]) + bytes(16), "i1", "places up to 128, found 0 to 129"),
        (bytes([5, 9, 1, 0, 0, 0]), "i1", "places up to 128, found 9 to 1"),
        (bytes([6, 0, 9, 1, 1]), "i1", "10 bytes expected, 2 left"),
        (bytes([6, 0, 1, 9, 9, 9, 0]), "i1", "end in zeros"),
        (bytes([6, 0, 1, 9, 9]) + bytes([1] * 9), "i1", "does not end where its symbols do"),
    ],
)
def test_malformed_values_are_refused_with_what_was_found(data, kind, message):
    with pytest.raises(WireError, match=message):
        decode_values(memoryview(data), 4, kind)


@pytest.mark.parametrize("size", [500, 8192, 12_000, 16_384, 40_000, 131_072])
@pytest.mark.parametrize("coder", ["as sent", "bitmap"])
def test_zeros_in_one_chunk_take_at_most_twice_the_dense_size(size, coder):
    """Honest chunks, and forged ones whose mask has a coder that nobody would choose for it."""
    rng = np.random.default_rng(0)
    place = np.arange(size)
    for share in (0.04, 0.13, 0.5, 0.8, 0.95):
        for is_zero in (rng.random(size) < share, place < share * size, place >= size * share):
            kept = ~is_zero
            array = np.where(kept, rng.normal(size=size), 0).astype(np.float32)
            data = encode_values(array)
            if coder != "as sent":
                if 2 * np.count_nonzero(kept) > size:
                    continue
                mask = bytes([masks.BITMAP]) + np.packbits(kept, bitorder="little").tobytes()
                others = encode_values(array[kept])
                data = bytes([values.SPARSE]) + bits.count_bytes(len(mask)) + mask + others
            decode_values(memoryview(data), size)
            tracemalloc.start()
            found = decode_values(memoryview(data), size)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert np.count_nonzero(found) == np.count_nonzero(kept)
            assert array.nbytes <= peak <= 2 * array.nbytes + 25_000  # objects and small blocks
