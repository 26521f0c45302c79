"""Error feedback: its rules by hand, and every kind to the same bits wherever clients run."""

from typing import Annotated, NamedTuple

import pytest
import torch

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key
from fedsieve.core.message import Bits, Change, Dense, Kept, Params
from fedsieve.core.method import Metrics
from fedsieve.engine import mask_cache
from fedsieve.engine.broadcast import ClientCache
from fedsieve.engine.client import ClientRuntime, Wire
from fedsieve.engine.error_feedback import (
    add_residual,
    aged,
    dated,
    divided,
    masked_out,
    residual_of,
)
from fedsieve.engine.mask_cache import remember
from fedsieve.engine.requests import Train
from fedsieve.jobs import library
from fedsieve.methods.fedavg import Down, FedAvg, Up
from fedsieve.wire.codec import Coding, Decoder, Known, UnheldError, encode
from fedsieve.wire.compressors import EXACT, Compression
from fedsieve.wire.compressors.signs import Sign
from fedsieve.wire.compressors.sparse import TopK
from fedsieve.wire.feedback import Ahead, Classic, Ef21, canonical, read_feedback
from fedsieve.wire.inspect import inspect, read_frame
from fedsieve.wire.versions import CHANGES, change_of
from small import METHODS, SETTINGS, StopAfter, small_job, steady


class Masked(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]


class Moved(NamedTuple):
    weights: Change
    rest: Dense


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def up(*values: float) -> Up:
    return Up({"w": tensor(*values)}, 1)


def test_what_arrived_is_what_was_meant_but_for_the_last_residual() -> None:
    draw = torch.Generator().manual_seed(0)
    base, residual, how = Down({"w": torch.zeros(50)}, 0), {}, TopK(0.1)
    meant, came = torch.zeros(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    for _ in range(20):
        change = torch.randn(50, generator=draw)
        sent = add_residual(Up({"w": change}, 1), residual)
        data = encode(sent, coding=Coding(how, Key(0), base)).data
        arrived = Decoder().decode(data, Up, base=base)
        assert int((arrived.weights["w"] != 0).sum()) == 5
        residual = residual_of(sent, arrived)
        meant, came = meant + change, came + arrived.weights["w"]
    assert torch.allclose(came, meant - residual["weights/w"], atol=1e-5)
    assert residual["weights/w"].abs().max() > 1


def test_a_residual_fades_with_every_round_since() -> None:
    left = dated({"weights/w": tensor(8, -4)}, 0.5, 3)
    assert torch.equal(aged(left, 0.5, 6)["weights/w"], tensor(1, -0.5))
    assert list(aged(left, 0.5, 6)) == ["weights/w"]
    assert dated({"weights/w": tensor(8)}, 1.0, 3) == {"weights/w": tensor(8)}
    assert dated({}, 0.5, 3) == {}


def test_what_a_mask_left_out_is_the_change_of_values() -> None:
    mask = {"w": torch.tensor([True, False, False, False])}
    before = Masked(mask, {"w": tensor(1, 1, 1, 1)})
    after = Masked(mask, {"w": tensor(3, 3, 0, 1.5)})  # the third is meant to be 0
    residual = {"weights/w": tensor(7, 10, 20, 0)}
    missing = masked_out(after, residual, before)
    assert torch.equal(missing["weights/w"], tensor(0, 12, 20, 0.5))
    assert not masked_out(after, {}, None)["weights/w"].any(), "values without a base: not a change"


def test_a_share_before_training_and_the_rest_after() -> None:
    residual = {"weights/w": tensor(4, -2), "rest/r": tensor(6)}
    before, after = divided(residual, Ahead(0.25), Down({"w": tensor(0, 0)}, 0), Up)
    assert torch.equal(before["weights/w"], tensor(1, -0.5))
    assert torch.equal(after["weights/w"], tensor(3, -1.5))
    assert torch.equal(after["rest/r"], tensor(6)), "no field of the broadcast"
    masked = Masked({"w": torch.tensor([True, False])}, {"w": tensor(0, 0)})
    before, after = divided(residual, Ahead(0.25), masked, Masked)
    assert torch.equal(before["weights/w"], tensor(1, 0))
    assert torch.equal(after["weights/w"], tensor(3, -2))
    for how, kind in ((Classic(), Up), (Ahead(0), Up), (Ahead(1), Moved)):
        assert divided(residual, how, Down({"w": tensor(0, 0)}, 0), kind) == ({}, residual)


def test_on_a_quadratic_the_step_is_taken_ahead(monkeypatch) -> None:
    # One step of rate 1/2 towards 8 from 2 + e/2, e = 4: 4 -> 6; with the other half 8.
    # Classic: 2 -> 5, with e 9.
    def step(self, down, state, data, key):
        weights = {n: w + 0.5 * (8 - w) for n, w in down.weights.items()}
        return Up(weights, data.examples), state, Metrics(0, {})

    monkeypatch.setattr(FedAvg, "client_update", step)
    for how, expected in ((Ahead(0.5), 8), (Ahead(1), 7), (Classic(), 9), (None, 5)):
        assert _replied(how, EXACT, {"weights/w": tensor(4)}, tensor(2)) == expected
    aged_by_two = dated({"weights/w": tensor(4)}, 0.5, 3)
    assert _replied(Classic(decay=0.5), EXACT, aged_by_two, tensor(2)) == 6


def _replied(how: object, compression: Compression, residual: Params, start: torch.Tensor) -> float:
    job = small_job()
    runtime = ClientRuntime(
        job.method, job.federation, Wire(compression, is_change=True, error_feedback=how)
    )  # type: ignore[arg-type]
    down = encode(Down({"w": start}, 0)).data
    request = Train(0, down, b"", frozenset(), {}, (), residual, Key(1), 5)
    reply = runtime.train(request)
    arrived = Decoder().decode(reply.up.data, Up, base=Down({"w": start}, 0))  # type: ignore[union-attr]
    return float(arrived.weights["w"])


@pytest.mark.parametrize(
    ("compressor", "change", "arriving"),
    [
        (TopK(0.5), (4, 3, 2, 1), [(4, 3, 0, 0), (4, 3, 2, 1), (4, 3, 2, 1)]),
        (Sign(), (3, 1), [(2, 2), (3, 1), (3, 1)]),
    ],
)
def test_the_last_change_of_ef21_reaches_a_constant_change(compressor, change, arriving) -> None:
    base = Down({"w": torch.full((len(change),), 10.0)}, 0)
    message = Up({"w": tensor(*change) + 10}, 1)
    held: dict = {}
    for expected in arriving:
        coding = Coding(compressor, Key(0), base, next(iter(held), 0))
        data = encode(message, Known(masks=held), coding).data
        arrived = Decoder().decode(data, Up, held, base=base)
        held = change_of(arrived, base)
        ((name, last),) = held.items()
        assert name >= CHANGES
        assert last.tolist() == list(expected)


def test_a_change_that_is_not_held_is_refused() -> None:
    base = Down({"w": tensor(0, 0)}, 0)
    held = change_of(up(1, 2), base)
    data = encode(up(1, 3), Known(masks=held), Coding(Sign(), Key(0), base, *held)).data
    assert Decoder().decode(data, Up, held, base=base).weights["w"].tolist() == [1.5, 2.5]
    for others, answered in (({}, base), (held, None), (change_of(up(1), base), base)):
        with pytest.raises(UnheldError, match="not held"):
            Decoder().decode(data, Up, others, base=answered)


def test_values_outside_a_mask_are_no_part_of_a_change() -> None:
    mask = {"w": torch.tensor([True, False])}
    arrived, base = Masked(mask, {"w": tensor(5, 0)}), Masked(mask, {"w": tensor(2, 9)})
    assert next(iter(change_of(arrived, base).values())).tolist() == [3, 0]
    moved = Moved({"w": tensor(5)}, {"r": tensor(1)})
    assert next(iter(change_of(moved, Down({"w": tensor(2)}, 0)).values())).tolist() == [5, 1]


KINDS = ("classic", "classic(decay=0.9, masked=true)", "ef21", "ahead(0.5)", "ahead(1, decay=0.9)")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("fedavg", {"up": "top_k(0.05, values=eden(bits=4))", "down": "lattice"}),
        ("fediter_ht", {"up": "sign"}),
        ("vardrop", {"wire": "int8"}),
    ],
)
def test_in_line_pool_and_resumed_agree_bit_for_bit(method, how, kind, tmp_path) -> None:
    options = SETTINGS | {"method": method, "error_feedback": kind} | how
    whole = fedsieve.run(**options)
    fedsieve.run(**options, out=tmp_path / "run", watcher=StopAfter(2))
    resumed = fedsieve.run(out=tmp_path / "run", resume=True, watcher=StopAfter(3))
    pooled = fedsieve.run(out=tmp_path / "run", resume=True, workers=2)
    assert whole.summary.failed == 0
    assert steady(resumed.rows) == steady(whole.rows)[:3]
    assert steady(pooled.rows) == steady(whole.rows)
    assert pooled.summary.model_hash == whole.summary.model_hash


@pytest.mark.parametrize("kind", ["classic(masked=true)", "ef21", "ahead(0.5)"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_every_kind(name, kind) -> None:
    found = fedsieve.run(
        **SETTINGS | {"rounds": 3}, method=name, up="top_k(0.2)", error_feedback=kind
    ).summary
    assert found.failed == 0


def test_without_a_share_ahead_is_classic_and_all_kinds_differ() -> None:
    def model(kind: object) -> str:
        how = {"up": "top_k(0.05)", "error_feedback": kind, "cohort": 5}
        return fedsieve.run(**SETTINGS | how).summary.model_hash

    assert model("ahead(0)") == model("classic") == model(True)  # noqa: FBT003
    assert model("none") == model(False)  # noqa: FBT003
    assert len({model(kind) for kind in ("none", *KINDS)}) == 1 + len(KINDS)


def test_a_forgotten_change_counts_as_none(monkeypatch) -> None:
    how = SETTINGS | {"up": "top_k(0.05)", "cohort": 5}
    plain = fedsieve.run(**how).summary.model_hash
    assert fedsieve.run(**how, error_feedback="ef21").summary.model_hash != plain
    monkeypatch.setattr(mask_cache, "LIMIT_BYTES", 0)
    assert fedsieve.run(**how, error_feedback="ef21").summary.model_hash == plain


def test_exact_messages_need_no_feedback() -> None:
    plain = fedsieve.run(**SETTINGS)
    for kind in ("ef21", "ahead"):
        found = fedsieve.run(**SETTINGS, error_feedback=kind)
        assert found.summary.model_hash == plain.summary.model_hash
        assert found.summary.up_bytes == plain.summary.up_bytes


def test_changes_are_no_versions_of_a_broadcast() -> None:
    table = remember({}, change_of(up(1, 2), Down({"w": tensor(0, 0)}, 0)))
    assert mask_cache.last_version(table) is None
    assert ClientCache(masks=tuple(table)).masks


def test_saved_messages_of_ef21_can_be_inspected(tmp_path) -> None:
    how = SETTINGS | {"up": "top_k(0.05)", "error_feedback": "ef21", "save_messages": "3"}
    fedsieve.run(**how | {"cohort": 5}, out=tmp_path / "run")
    frames = list(map(read_frame, (tmp_path / "run" / "messages").glob("*.frame")))
    ups = [inspect(frame) for frame in frames if frame.direction == "up"]
    assert len(ups) == 5
    assert all(sum(mark >= CHANGES for mark, *_ in frame.masks) == 1 for frame in frames)


def test_settings_of_before_mean_what_they_meant() -> None:
    assert read_feedback(True) == read_feedback("classic") == Classic()  # noqa: FBT003
    assert read_feedback(False) is read_feedback("none") is read_feedback(None) is None  # noqa: FBT003
    assert canonical("classic(decay=1.0)") is True
    assert canonical("none") is False
    assert canonical("ahead") == "ahead(share=0.5, decay=1.0, masked=False)"
    assert read_feedback("ef21") == Ef21()
    old = {"method": "fedavg", "wire": "int8"}
    for value, expected in ((True, "deb86ba205df"), (False, "23845170c062")):
        assert library.run_hash(old | {"error_feedback": value}) == expected
    assert library.run_hash(old | {"error_feedback": "classic"}) == "deb86ba205df"
    assert library.run_hash(old | {"error_feedback": "none"}) == "23845170c062"
    assert library.run_hash(old | {"error_feedback": "ahead"}) == library.run_hash(
        old | {"error_feedback": "ahead(share=0.5)"}
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("ef12", "Did you mean 'ef21'"),
        ("classic(decay=0)", "decay"),
        ("ahead(1.5)", "share"),
        ("ef21(2)", "at most 0"),
    ],
)
def test_other_values_are_refused_by_name(value, said) -> None:
    with pytest.raises(ConfigError, match=said):
        fedsieve.run(**SETTINGS, error_feedback=value)
