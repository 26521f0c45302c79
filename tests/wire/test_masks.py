"""Masks: round trips, closeness to the information limit, and refusal of anything malformed."""

import hashlib
import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsieve.core.errors import WireError
from fedsieve.wire import changes, entropy, masks
from fedsieve.wire.changes import decode_change, encode_change
from fedsieve.wire.masks import ROWS, decode_mask, encode_mask
from wire.messages import damaged

LENET = ((20, 25), (50, 500), (500, 800), (10, 500))


def size_of(layout):
    return sum(rows * columns for rows, columns in layout)


def bits_of(ones, size):
    """The limit, n * H(ones / n), of a mask whose positions are all alike."""
    shares = [share for share in (ones / size, 1 - ones / size) if share > 0] if size else []
    return -size * sum(share * math.log2(share) for share in shares)


def there_and_back(kept, layout):
    data = encode_mask(kept, layout)
    found = decode_mask(memoryview(data), layout)
    assert found.dtype == np.bool_
    assert np.array_equal(found, kept)
    return data


def changed_there_and_back(kept, before, layout):
    data = encode_change(kept, before, layout)
    found = decode_change(memoryview(data), before.copy(), layout)
    assert np.array_equal(found, kept)
    return data


@st.composite
def cases(draw):
    """A layout of up to 5,000 positions and a mask over it with some structure."""
    tensors = st.tuples(st.integers(0, 40), st.integers(0, 40))
    layout = (*draw(st.lists(tensors, max_size=3)), (1, draw(st.integers(0, 199))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 1e-3, 0.03, 0.3, 0.5, 0.8, 0.97, 1.0]))
    parts = []
    for shape in layout:
        part = rng.random(shape) < density * rng.random()
        match draw(st.sampled_from(["even", "rows", "columns", "both", "each row", "full rows"])):
            case "rows":
                part[rng.random(shape[0]) < 0.5] = False
            case "columns":
                part[:, rng.random(shape[1]) < 0.5] = False
            case "both":
                part[rng.random(shape[0]) < 0.5] = False
                part[:, : shape[1] // 2] = False
            case "each row":
                part = rng.random(shape) < rng.random((shape[0], 1))
            case "full rows":
                part[rng.random(shape[0]) < 0.3] = True
        parts.append(part.reshape(-1))
    return np.concatenate(parts), layout, rng


@given(cases())
@settings(max_examples=300, deadline=None)
def test_masks_come_back(case):
    kept, layout, _ = case
    there_and_back(kept, layout)


@given(cases(), st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]))
@settings(max_examples=300, deadline=None)
def test_changes_come_back(case, share):
    kept, layout, rng = case
    before = kept ^ (rng.random(kept.size) < share)
    changed_there_and_back(kept, before, layout)


def patterns():
    layout = ((64, 72), (30, 9), (17, 1))
    size = size_of(layout)
    place = np.arange(size)
    yield layout, place % 2 == 0
    yield layout, place % 4 < 2  # two of every four
    yield layout, place < size // 2
    yield layout, place >= size // 2
    yield layout, place == 0
    yield layout, place == size - 1
    yield layout, place != 0
    yield layout, place != size - 1
    yield layout, place // 72 % 2 == 0
    yield layout, (place // 72 + place % 72) % 2 == 0
    yield layout, np.isin(place, 2 ** np.arange(13))
    yield (), np.zeros(0, np.bool_)
    yield ((0, 5), (5, 0)), np.zeros(0, np.bool_)
    yield ((1, 1),), np.ones(1, np.bool_)
    yield ((1, 2), (1, 1)), np.array([False, False, True])  # whole rows, and too few to say so


@pytest.mark.parametrize("number", range(15))
def test_odd_patterns_come_back_and_never_cost_more_than_a_bitmap(number):
    layout, kept = list(patterns())[number]
    data = there_and_back(kept, layout)
    assert len(data) <= 1 + (kept.size + 7) // 8
    for before in (~kept, np.zeros_like(kept), np.ones_like(kept), np.roll(kept, 1), kept):
        assert len(changed_there_and_back(kept, before, layout)) <= 2 + (kept.size + 7) // 8


def test_each_coder_is_chosen_where_it_is_best():
    rng = np.random.default_rng(0)
    size = size_of(LENET)
    rows = np.concatenate([(rng.random((r, c)) < rng.random((r, 1))).reshape(-1) for r, c in LENET])
    chosen = {
        masks.EMPTY: np.zeros(size, np.bool_),
        masks.FULL: np.ones(size, np.bool_),
        masks.BITMAP: rng.random(size) < 0.5,
        masks.FLAT: rng.random(size) < 0.05,
        masks.LAYERS: rows,
        masks.ROWS: np.arange(size) < 20 * 25 + 7 * 500,
    }
    assert {tag: there_and_back(kept, LENET)[0] for tag, kept in chosen.items()} == {
        tag: tag for tag in chosen
    }


def test_small_masks_are_as_derived_by_hand():
    layout = ((2, 8),)
    kept = np.zeros(16, np.bool_)
    assert encode_mask(kept, layout) == b"\0"
    assert encode_mask(~kept, layout) == b"\1"
    kept[[0, 3, 15]] = True
    assert encode_mask(kept, layout) == bytes([2, 0b00001001, 0b10000000])


def test_frames_once_written_stay_readable():
    # Written by the first version of these coders, but for the tags, which are those of version 5;
    # a failure means that the format has changed.
    layout, place = ((10, 24),), np.arange(240)
    kept = (place * place % 7 == 1) & (place // 24 % 2 == 0)
    flat = bytes.fromhex("030071b959d3400128d35ffb5ff8f6ff38cb6604fdaf09")
    layers = bytes.fromhex("04010500791ed28d91e0758da132ca8d6a33cac0ba09")
    change = bytes.fromhex("03f0714cdb56556d36353f367924e2334a343d6beb9fb206")
    assert np.array_equal(decode_mask(memoryview(flat), layout), kept)
    assert np.array_equal(decode_mask(memoryview(layers), layout), kept)
    assert np.array_equal(decode_change(memoryview(change), place % 3 == 0, layout), kept)


def iid(rng, layout, density):
    kept = rng.random(size_of(layout)) < density
    return kept, bits_of(np.count_nonzero(kept), kept.size)


def by_layer(rng, layout, density):
    parts = [rng.random(r * c) < min(density * rng.uniform(0.3, 3), 0.9) for r, c in layout]
    return np.concatenate(parts), sum(bits_of(np.count_nonzero(p), p.size) for p in parts)


def dropped_rows(rng, layout, density):
    """Half of the rows dropped; the limit is rows * H(share) and the inner cost."""
    parts, limit = [], 0.0
    for rows, columns in layout:
        is_used = rng.random(rows) < 0.5
        part = (rng.random((rows, columns)) < density) & is_used[:, None]
        used = np.count_nonzero(is_used)
        limit += bits_of(used, rows) + bits_of(np.count_nonzero(part), used * columns)
        parts.append(part.reshape(-1))
    return np.concatenate(parts), limit


def own_densities(rng, layout, density):
    """Each row has its own density; the limit is the code length for who knows them all."""
    parts, limit = [], 0.0
    for rows, columns in layout:
        share = np.clip(density * rng.gamma(1.5, 1 / 1.5, rows), 1e-5, 0.95)
        part = rng.random((rows, columns)) < share[:, None]
        ones = part.sum(axis=1)
        limit -= float(ones @ np.log2(share) + (columns - ones) @ np.log2(1 - share))
        parts.append(part.reshape(-1))
    return np.concatenate(parts), limit


@pytest.mark.parametrize("density", [0.005, 0.05, 0.5])
@pytest.mark.parametrize("make", [iid, by_layer, dropped_rows, own_densities])
def test_masks_take_at_most_five_percent_more_than_the_limit(make, density):
    kept, limit = make(np.random.default_rng(7), LENET, density)
    assert 8 * len(there_and_back(kept, LENET)) <= 1.05 * limit


def test_dropped_rows_and_columns_cost_about_nothing():
    rng = np.random.default_rng(3)
    kept = np.ones((500, 800), np.bool_)
    kept[rng.random(500) < 0.5] = False
    kept[:, np.repeat(rng.random(50) < 0.5, 16)] = False  # 16 inputs of each dropped filter
    data = there_and_back(kept.reshape(-1), ((500, 800),))
    assert len(data) <= 500 / 8 + 800 / 8 / 2


def flipped(rng, before, share):
    """As many positions lost as grown: `share` of those kept before."""
    kept = before.copy()
    flips = max(1, round(share * np.count_nonzero(before)))
    kept[rng.choice(np.flatnonzero(before), flips, replace=False)] = False
    kept[rng.choice(np.flatnonzero(~before), flips, replace=False)] = True
    ones = np.count_nonzero(before)
    return kept, bits_of(flips, ones) + bits_of(flips, before.size - ones)


@pytest.mark.parametrize(
    ("density", "share"), [(0.005, 0.1), (0.05, 0.1), (0.5, 0.1), (0.5, 0.001)]
)
def test_changes_take_at_most_five_percent_more_than_the_limit(density, share):
    rng = np.random.default_rng(5)
    before = rng.random(size_of(LENET)) < density
    kept, limit = flipped(rng, before, share)
    assert 8 * len(changed_there_and_back(kept, before, LENET)) <= 1.05 * limit


def test_a_change_in_one_tensor_only_is_not_paid_for_by_the_others():
    rng = np.random.default_rng(5)
    before = rng.random(size_of(LENET)) < 0.3
    kept = before.copy()
    kept[-5000:] ^= rng.random(5000) < 0.3
    limit = 2 * bits_of(750, 2500)
    assert 8 * len(changed_there_and_back(kept, before, LENET)) <= 1.05 * limit


def test_no_change_takes_no_byte():
    before = np.random.default_rng(0).random(1000) < 0.5
    assert changed_there_and_back(before, before, ((1, 1000),)) == b""


def one_position(size):
    """Probability of an empty byte where one of `size` positions is set, of 2**24."""
    share = entropy.LEVELS[entropy.level_of(entropy.SCALE // size)] / entropy.SCALE
    return 1 + int((2**24 - 256) * (1 - share) ** 8)  # each of the 256 bytes has 1 at least


@pytest.mark.parametrize("place", [7, 15, 7 + 8 * 499])  # the last of its byte, whose symbol is 1
def test_one_position_is_as_derived_by_hand(place):
    """ANS starts from 0 behind the last byte, and there empty bytes leave it at 0.

    Symbol 1 makes it the sum of all probabilities before it, that of symbol 0; then each empty byte
    adds what its probability lacks of 2**24.
    """
    empty = one_position(4000)
    state = empty + place // 8 * (2**24 - empty)
    stream = state.to_bytes(4, "little").rstrip(b"\0")
    level = entropy.level_of(entropy.SCALE // 4000)
    kept = np.arange(4000) == place
    assert encode_mask(kept, ((1, 4000),)) == bytes([masks.FLAT, 0, level]) + stream
    before = np.zeros(4000, np.bool_)  # nothing to lose: level 0
    change = bytes([masks.FLAT, 0, level]) + stream
    assert np.array_equal(decode_change(memoryview(change), before, ((1, 4000),)), kept)


def most_bits(limit, *sizes):
    """Of a few set positions, of a density below 1/16, among each of `sizes`.

    - three bytes of head; three of the first byte that is not empty, whatever its probability; and
      one to make the bits whole bytes;
    - a density is off by 1/8 (the share in whole steps of 1 / SCALE) and 1/16 (its level) at most:
      .04 bits a position, of the 4 that each takes at least;
    - the lowest level stands for 8 / SCALE: where fewer are set, that is what the others pay.
    """
    lowest = 8 / entropy.SCALE
    return (1 + 2**-6) * limit + 8 * (3 + 3 + 1) + sum(sizes) * lowest * math.log2(math.e)


@pytest.mark.parametrize("size", [10**3, 10**4, 10**5, 10**6])
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32, 62])
def test_a_few_positions_take_little_more_than_the_limit(count, size):
    kept = np.random.default_rng(count).permutation(size) < count
    data = there_and_back(kept, ((1, size),))
    assert data[0] == masks.FLAT
    assert 8 * len(data) <= most_bits(bits_of(count, size), size)
    assert len(there_and_back(~kept, ((1, size),))) == len(data)


@pytest.mark.parametrize("share", [0.0005, 0.002, 0.005, 0.01, 0.025])
@pytest.mark.parametrize("seed", range(4))
def test_a_few_moved_positions_take_little_more_than_the_limit(share, seed):
    """LeNet at density .005: from one position moved."""
    rng = np.random.default_rng(seed)
    before = rng.random(size_of(LENET)) < 0.005
    kept, limit = flipped(rng, before, share)
    data = changed_there_and_back(kept, before, LENET)
    assert data[0] == masks.FLAT
    assert 8 * len(data) <= most_bits(limit, before.size)


def test_lazy_and_eager_models_give_the_same_stream():
    symbols = (np.random.default_rng(0).random(4000) ** 8 * 256).astype(np.int32)
    streams = set()
    for lazy in (True, False):
        model = entropy.constriction.stream.model.Categorical(
            np.array([float(3**k) for k in range(30)] * 8 + [1.0] * 16), perfect=False, lazy=lazy
        )
        coder = entropy.constriction.stream.stack.AnsCoder()
        coder.encode_reverse(symbols, model)
        streams.add(coder.get_compressed().tobytes())
    assert len(streams) == 1


@pytest.mark.parametrize("value", [*range(40), 1000, 12345, 10**6, 10**9])
def test_a_level_is_within_a_sixteenth_of_its_value(value):
    found = entropy.LEVELS[entropy.level_of(value)]
    assert (found == 0) == (value == 0)
    assert value < 8 or abs(found - value) <= value / 16


def outcome(decode, size):
    """What became of damaged bytes: refused, or a mask of the right size."""
    try:
        found = decode()
    except WireError:
        return "refused"
    assert found.dtype == np.bool_
    assert found.shape == (size,)
    return "decoded"


def frames(rng, layout):
    """Valid masks and changes by all coders, with the mask before the changes."""
    size = size_of(layout)
    rows = [(rng.random((r, c)) < rng.random((r, 1))).reshape(-1) for r, c in layout]
    rows[0][: size_of(layout[:1]) // 2] = False
    kepts = [rng.random(size) < d for d in (0.01, 0.3, 0.5, 0.95)]
    in_first = np.arange(size) < size_of(layout[:1])
    kepts += [np.concatenate(rows), rng.permutation(size) < 40, in_first & (rng.random(size) < 0.3)]
    before = rng.random(size) < 0.3
    coded = [encode_mask(kept, layout) for kept in kepts]
    assert {data[0] for data in coded} == {masks.BITMAP, masks.FLAT, masks.LAYERS}
    changed = [encode_change(before ^ kept, before, layout) for kept in kepts]
    assert {data[0] for data in changed} == {changes.ANEW, masks.FLAT, masks.LAYERS}
    return coded, changed, before


def test_damaged_bytes_are_refused_or_give_a_mask_of_the_right_size():
    rng = np.random.default_rng(11)
    layout = ((40, 50), (300, 9), (64, 1))
    coded, changes, before = frames(rng, layout)
    seen = set()
    for data, change in zip(coded * 400, changes * 400, strict=True):
        bad = damaged(rng, data)
        seen.add(outcome(lambda bad=bad: decode_mask(bad, layout), before.size))
        bad = damaged(rng, change)
        seen.add(outcome(lambda bad=bad: decode_change(bad, before, layout), before.size))
    assert seen == {"refused", "decoded"}


def test_damaged_bytes_never_take_more_than_twice_the_dense_size():
    rng = np.random.default_rng(12)
    coded, changes, before = frames(rng, LENET)
    decode_change(memoryview(changes[0]), before, LENET)  # its tables are made once
    peaks = []
    for data, change in zip(coded * 10, changes * 10, strict=True):
        bad, bad_change = damaged(rng, data), damaged(rng, change)
        tracemalloc.start()
        outcome(lambda bad=bad: decode_mask(bad, LENET), before.size)
        outcome(lambda bad=bad_change: decode_change(bad, before, LENET), before.size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) <= 2 * 4 * before.size


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "1 bytes expected, 0 left"),
        (b"\x06", "coder from 0 to 5 expected, found 6"),
        (b"\0\0", "left over"),
        (bytes([2, 0]), "2 bytes expected, 1 left"),
        (bytes([2, 0, 255]), "behind the end of 12"),
        (bytes([3, 0, 9, 1, 0]), "end in zeros"),
        (bytes([3, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9]), "does not end where"),
        (bytes([4, 128, 0]), "unknown flags 0x80"),
        (bytes([4, 64, 0]), "unknown flags 0x40"),
        (bytes([4, 2, 3, 1, 9, 9, 9]), "at most 3|3 rows"),
    ],
)
def test_malformed_masks_are_refused_with_what_was_found(data, message):
    with pytest.raises(WireError, match=message):
        decode_mask(memoryview(data), ((3, 4),))


def test_a_layout_of_another_size_is_refused():
    with pytest.raises(WireError, match="layout of 10 positions expected"):
        encode_mask(np.arange(10) < 3, ((3, 4),))


def fingerprint():
    rng = np.random.default_rng(1)
    before = np.concatenate([rng.random(r * c) < 0.1 for r, c in LENET])
    kept, _ = own_densities(rng, LENET, 0.05)
    data = encode_mask(kept, LENET) + encode_change(kept, before, LENET)
    return hashlib.sha256(data).hexdigest()


def test_the_bytes_are_the_same_in_another_process():
    code = "from wire.test_masks import fingerprint; print(fingerprint())"
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "7"},
    )
    assert run.stdout.strip() == fingerprint()


def test_rows_kept_or_dropped_whole_cost_one_flag_a_row():
    rng = np.random.default_rng(5)
    rows = np.concatenate([rng.permutation(r) < r // 2 for r, _ in LENET])
    kept = rows.repeat(np.repeat([c for _, c in LENET], [r for r, _ in LENET]))
    data = encode_mask(kept, LENET)
    assert np.array_equal(decode_mask(memoryview(data), LENET), kept)
    assert len(data) <= 1.05 * rows.size / 8  # half of them: one bit each


def test_a_mask_without_tensors_has_no_rows():
    for data in (bytes([ROWS]), bytes([ROWS, 0]), bytes([ROWS, 2, 0])):
        with pytest.raises(WireError, match="coder"):
            decode_mask(memoryview(data), ())


def test_flags_of_rows_are_not_nested():
    forged = bytes([ROWS]) * 100_000
    with pytest.raises(WireError, match="found 5"):
        decode_mask(memoryview(forged), LENET)


def test_masks_alone_are_decoded_in_little_more_than_twice_their_size():
    rng = np.random.default_rng(4)
    layout = ((500, 800),)
    rows = (rng.random(layout[0]) < rng.random((500, 1))).reshape(-1)
    thin = (rows.reshape(layout[0]) & (rng.random(800) < 0.5)).reshape(-1)
    before = rng.random(rows.size) < 0.3
    for kept in (rows, thin, before, rng.random(rows.size) < 0.05, rng.permutation(rows.size) < 50):
        whole, change = encode_mask(kept, layout), encode_change(kept ^ before, before, layout)
        for decode in (
            lambda whole=whole: decode_mask(memoryview(whole), layout),
            lambda change=change: decode_change(memoryview(change), before, layout),
        ):
            decode()
            tracemalloc.start()
            decode()
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert kept.size <= peak <= 2 * kept.size + 30_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes([2]), r"one of \[0, 3, 4\] expected, found 2"),
        (bytes([0]), "1 bytes expected, 0 left"),
        (bytes([0, 6]), "coder from 0 to 5 expected, found 6"),
        (bytes([3, 1]), "1 bytes expected, 0 left"),
        (bytes([3, 1, 1, 0]), "end in zeros"),
        (bytes([3, 1, 1, *range(1, 10)]), "does not end where"),
    ],
)
def test_malformed_changes_are_refused_with_what_was_found(data, message):
    with pytest.raises(WireError, match=message):
        decode_change(memoryview(data), np.arange(12) % 4 == 0, ((3, 4),))
