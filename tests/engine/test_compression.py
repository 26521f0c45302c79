"""Compressed messages: the same bits on every executor, versions that clients hold, refusals."""

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError, RoundError
from fedsieve.core.keys import Key
from fedsieve.engine.client import ClientRuntime, Wire
from fedsieve.engine.executors.inline import Inline
from fedsieve.methods.fedavg import Down, Up
from fedsieve.methods.fediter_ht import Down as MaskedDown
from fedsieve.wire.codec import Coding, Decoder, Known, UnheldError, encode
from fedsieve.wire.compressors.eden import Eden
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.versions import next_version, version_of
from small import METHODS, SETTINGS, StopAfter, rounds_of, small_job, steady

OWN_MESSAGES = {"feddrop", "pfnm", "gpi_fnm", "fedspa", "lg_fedavg", "lotteryfl", "sub_fedavg"}


def compressed(method: str, **more: object) -> dict[str, object]:
    down = "bf16" if method in OWN_MESSAGES else "lattice(step=1)"
    return SETTINGS | {"method": method, "up": "eden(bits=4)", "down": down} | more


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_compressed_in_fewer_bytes(name: str) -> None:
    plain = fedsieve.run(**SETTINGS, method=name).summary
    found = fedsieve.run(**compressed(name)).summary
    assert found.failed == 0
    assert found.sent_bytes <= plain.sent_bytes


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {}),
        ("fediter_ht", {"up": "uniform(step=2)"}),
        ("fedavg", {"up": "top_k(0.1, values=eden(bits=2))", "error_feedback": True}),
        ("fedopt", {"up": "low_rank(1)", "error_feedback": True}),
        ("fedsparse", {"up": "qsgd(levels=4)"}),
    ],
)
def test_in_line_pool_and_resumed_agree_bit_for_bit(method, more, tmp_path) -> None:
    options = compressed(method, **more)
    whole = fedsieve.run(**options)
    fedsieve.run(**options, out=tmp_path / "run", watcher=StopAfter(2))
    resumed = fedsieve.run(out=tmp_path / "run", resume=True, watcher=StopAfter(3))
    pooled = fedsieve.run(out=tmp_path / "run", resume=True, workers=2)
    assert steady(resumed.rows) == steady(whole.rows)[:3]
    assert steady(pooled.rows) == steady(whole.rows)
    assert pooled.summary.model_hash == whole.summary.model_hash


def test_a_later_broadcast_costs_what_is_new() -> None:
    method = small_job().method
    weights = method.task.init_params(Key(1))
    lattice = Lattice(1.0)
    first = next_version(Down(weights, 0), None, lattice)
    moved = {n: w + 0.001 * torch.randn_like(w) for n, w in weights.items()}
    second = next_version(Down(moved, 1), *version_of(first).values(), lattice)
    coding, size = Coding(lattice), sum(w.numel() for w in weights.values())
    whole = encode(second, coding=coding)
    change = encode(second, Known(masks=version_of(first)), coding)
    assert 8 * change.value_bytes < 2.6 * size < 8 * whole.value_bytes
    arrived = Decoder().decode(change.data, Down, version_of(first))
    for name, value in second.weights.items():
        assert torch.equal(arrived.weights[name], value)


def test_whoever_missed_versions_ends_with_the_same_values() -> None:
    method, lattice = small_job().method, Lattice(2.0)
    weights = method.task.init_params(Key(1))
    versions = [next_version(Down(weights, 0), None, lattice)]
    for number in range(1, 8):
        weights = {n: w + 0.01 / number * torch.randn_like(w) for n, w in weights.items()}
        (last,) = version_of(versions[-1]).values()
        versions.append(next_version(Down(weights, number), last, lattice))
    for held in versions[:-1]:
        data = encode(versions[-1], Known(masks=version_of(held)), Coding(lattice)).data
        arrived = Decoder().decode(data, Down, version_of(held))
        assert version_of(arrived).keys() == version_of(versions[-1]).keys()


def test_what_rounding_took_is_sent_later() -> None:
    lattice, value = Lattice(1.0), torch.full((1000,), 1.0)
    version = next_version(Down({"w": value}, 0), None, lattice)
    for number in range(12):
        value = value + 0.01 * torch.randn(1000)
        (last,) = version_of(version).values()
        version = next_version(Down({"w": value}, number), last, lattice)
    assert (version.weights["w"] - value).abs().max() <= 0.01  # half a step, whatever the rounds


def test_versions_are_zero_outside_masks() -> None:
    lattice, mask = Lattice(1.0), {"w": torch.tensor([True, False, True])}
    down = MaskedDown(mask, {"w": torch.tensor([0.5, 0.0, -0.25])}, 0)
    before = np.array([0.5, 0.75, 0.0], np.float32)
    after = next_version(down, before, lattice)
    assert after.weights["w"][1] == 0
    data = encode(after, Known(masks=_named(before, after)), Coding(lattice)).data
    arrived = Decoder().decode(data, MaskedDown, _named(before, after))
    assert torch.equal(arrived.weights["w"], after.weights["w"])


def _named(flat: np.ndarray, like: MaskedDown) -> dict[int, np.ndarray]:
    values = {"w": torch.from_numpy(flat)}
    return version_of(MaskedDown(like.mask, values, 0))


def test_a_receiver_without_the_base_refuses() -> None:
    lattice = Lattice(1.0)
    first = next_version(Down({"w": torch.randn(50)}, 0), None, lattice)
    data = encode(first, Known(masks=version_of(first)), Coding(lattice)).data
    with pytest.raises(UnheldError, match="not held"):
        Decoder().decode(data, Down)
    up = encode(Up({"w": torch.randn(50)}, 3), coding=Coding(Eden(), Key(1), first)).data
    with pytest.raises(UnheldError, match="not held"):
        Decoder().decode(up, Up)
    arrived = Decoder().decode(up, Up, base=first)
    assert arrived.examples == 3


@pytest.mark.parametrize("method", ["fedavg", "fediter_ht"])
def test_the_start_is_made_of_the_seed_and_never_sent(method: str) -> None:
    settings = SETTINGS | {"method": method, "rounds": 1}
    exact, free = fedsieve.run(**settings), fedsieve.run(**settings, down="lattice")
    (sent, left) = (run.rows[0].down_bytes for run in (exact, free))
    assert left < 1200 < sent  # three headers with schemas remain


def test_a_client_with_another_start_gets_a_whole_message(tmp_path) -> None:
    job, wire = small_job(method="fedavg"), Wire(down=Lattice())
    plans = {"down": Lattice(), "rounds": 2, "cohort": 5}
    alike, other = (rounds_of(job, tmp_path / name, **plans) for name in ("alike", "other"))
    alike.execute = Inline(ClientRuntime(job.method, job.federation, wire, job.config.seed))
    other.execute = Inline(ClientRuntime(job.method, job.federation, wire, job.config.seed + 1))
    expected, played = (list(rounds.play(rounds.start())) for rounds in (alike, other))
    assert [p.row.failed for p in played] == [0, 0]
    assert tree.equal(played[-1].position.server, expected[-1].position.server)
    assert played[0].row.down_bytes > 5 * expected[0].row.down_bytes
    assert played[1].row.down_bytes == expected[1].row.down_bytes


def test_a_reply_in_another_compression_than_was_asked_for_is_left_out(tmp_path) -> None:
    job = small_job(method="fedavg")
    rounds = rounds_of(job, tmp_path, up=Eden(bits=2), rounds=1, min_replies=1)
    rounds.execute = Inline(ClientRuntime(job.method, job.federation, Wire(Eden(bits=4), True)))  # noqa: FBT003
    with pytest.raises(RoundError, match=r"written as eden, asked for eden\(bits=2\)"):
        next(rounds.play(rounds.start()))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"up": "edn(bits=2)"}, "eden"),
        ({"up": "eden(bits=9)"}, "eden: bits=9"),
        ({"up": "lattice"}, "it is for broadcasts"),
        ({"down": "lattice", "method": "feddrop"}, "a message of its own"),
    ],
)
def test_what_cannot_work_is_refused(settings, text) -> None:
    with pytest.raises(ConfigError, match=text):
        fedsieve.run(**SETTINGS | settings)


@pytest.mark.parametrize("method", ["fedavg", "fediter_ht", "fedspa"])
def test_rounds_take_the_bytes_asked_for(method: str) -> None:
    settings = SETTINGS | {"method": method, "clients": 3, "rounds": 6}
    settings |= {"down": "int8"} if method in OWN_MESSAGES else {}
    most = max(r.up_bytes + r.down_bytes for r in fedsieve.run(**settings).rows)
    target = (0.25 if method == "fedavg" else 0.6) * most
    rows = fedsieve.run(**settings, round_bytes=int(target)).rows
    least = 0.98 * target if method == "fedavg" else 0  # few values take less at their finest
    for row in rows[2:]:  # the first messages to a client are whole
        assert least <= row.up_bytes + row.down_bytes <= 1.02 * target


def test_a_target_is_met_to_the_same_bits_in_a_pool(tmp_path) -> None:
    options = SETTINGS | {"method": "fedavg", "round_bytes": 4000}
    alone = fedsieve.run(**options)
    fedsieve.run(**options, out=tmp_path / "run", watcher=StopAfter(2))
    pooled = fedsieve.run(out=tmp_path / "run", resume=True, workers=2)
    assert steady(pooled.rows) == steady(alone.rows)
    assert pooled.summary.model_hash == alone.summary.model_hash


def test_a_target_that_is_missed_is_named(caplog) -> None:
    fedsieve.run(**SETTINGS | {"rounds": 1, "round_bytes": 100})
    assert "the target is 100" in caplog.text
