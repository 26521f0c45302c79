"""Rounded messages and error feedback: fewer bytes, the same bits whoever does the work."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key
from fedsieve.core.message import Bits, Count, Dense, Exact, Kept, Params
from fedsieve.engine.client import ClientRuntime, Wire
from fedsieve.engine.error_feedback import add_residual, residual_of
from fedsieve.engine.executors.inline import Inline
from fedsieve.methods.fedavg import FedAvg
from fedsieve.wire.codec import Coding, Decoder, encode
from fedsieve.wire.compressors import NAMED
from fedsieve.wire.feedback import Classic
from small import METHODS, SETTINGS, StopAfter, rounds_of, small_job, steady

LONGER = SETTINGS | {"rounds": 12, "eval_every": 4}
ROUNDED = ("bf16", "fp16", "int8")


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    gates: Dense
    shares: Exact
    examples: Count


@pytest.fixture(scope="module")
def exact():
    return fedsieve.run(**LONGER)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(("wire", "share"), [("bf16", 0.5), ("fp16", 0.6), ("int8", 0.3)])
def test_bytes_fall_and_accuracy_stays(exact, wire, share, feedback):
    found = fedsieve.run(**LONGER, wire=wire, error_feedback=feedback).summary
    whole = exact.summary
    for now, before in ((found.up_bytes, whole.up_bytes), (found.down_bytes, whole.down_bytes)):
        assert now < share * before
    paper = found.up_paper_bytes  # 4 bytes a value
    assert found.up_bytes < {"bf16": paper / 2, "fp16": paper / 2, "int8": paper / 3}[wire]
    assert found.up_paper_bytes == whole.up_paper_bytes
    assert whole.global_accuracy > 0.7
    assert found.global_accuracy > whole.global_accuracy - 0.03
    assert found.model_hash != whole.model_hash


@dataclass(frozen=True, kw_only=True)
class Told(FedAvg):
    """Keeps what the server is told of its rounds."""

    told: ClassVar[list[Any]] = []

    def server_update(self, server, round, key):
        self.told.append((server, round))
        return super().server_update(server, round, key)


@pytest.mark.parametrize("wire", ["fp32", *ROUNDED])
def test_the_server_is_told_what_its_clients_read_and_what_it_weighed(wire, tmp_path):
    job = small_job(rounds=1)
    job = replace(job, method=Told(task=job.method.task, lr=0.1))
    rounds = rounds_of(job, tmp_path, down=NAMED[wire])
    Told.told.clear()
    (played,) = rounds.play(rounds.start())
    ((server, told),) = Told.told
    read = [told.down(m.client) for m in played.messages if m.direction == "down"]
    assert all(tree.equal(one, read[0]) for one in read)
    assert tree.equal(read[0].weights, server.weights) == (wire == "fp32")
    for name, weight in server.weights.items():
        torch.testing.assert_close(read[0].weights[name], weight, atol=0.01, rtol=0.01)
    assert told.load == (3, played.row.up_bytes, played.row.down_bytes)
    assert len(told.replies) == 3


def test_int8_takes_at_most_a_byte_a_value_and_four_a_group(tmp_path):
    job = small_job(rounds=1)
    rounds = rounds_of(job, tmp_path, down=NAMED["int8"])
    (played,) = rounds.play(rounds.start())
    values = sum(v.numel() for v in played.position.server.weights.values())
    assert values == 64 * 12 + 12 + 12 * 10 + 10  # one group
    for m in played.messages:
        if m.direction == "down":
            assert m.paper_bytes == 4 * values
            assert m.value_bytes <= values + 4 + 1  # a scale and a tag


@pytest.mark.parametrize(
    ("method", "wire", "feedback"),
    [("fediter_ht", "int8", True), ("fedmix", "bf16", False), ("fedavg", "fp16", True)],
)
def test_in_line_pool_and_resumed_agree_bit_for_bit(method, wire, feedback, tmp_path):
    options = SETTINGS | {"method": method, "wire": wire, "error_feedback": feedback}
    whole = fedsieve.run(**options)
    fedsieve.run(**options, out=tmp_path / "run", watcher=StopAfter(2))
    resumed = fedsieve.run(out=tmp_path / "run", resume=True, watcher=StopAfter(3))
    pooled = fedsieve.run(out=tmp_path / "run", resume=True, workers=2)
    assert steady(resumed.rows) == steady(whole.rows)[:3]
    assert steady(pooled.rows) == steady(whole.rows)
    assert pooled.summary.model_hash == whole.summary.model_hash


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_int8_and_error_feedback(name):
    short = SETTINGS | {"rounds": 2}
    plain = fedsieve.run(**short, method=name).summary
    found = fedsieve.run(**short, method=name, wire="int8", error_feedback=True).summary
    assert found.failed == 0
    assert found.global_accuracy is None or found.global_accuracy > 0
    sends = plain.up_paper_bytes + plain.down_paper_bytes > 0
    assert (found.up_bytes + found.down_bytes < plain.up_bytes + plain.down_bytes) == sends


def test_unknown_precisions_are_refused_by_name():
    with pytest.raises(ConfigError, match="wire"):
        fedsieve.run(**SETTINGS, wire="int4")


def with_feedback(job, folder, precision="int8"):
    rounds = rounds_of(job, folder, up=NAMED[precision], down=NAMED[precision])
    wire = Wire(NAMED[precision], error_feedback=Classic())
    runtime = ClientRuntime(job.method, job.federation, wire)
    rounds.execute = Inline(runtime)
    return rounds


def test_residuals_are_kept_for_each_client_and_versioned_like_states(tmp_path):
    rounds = with_feedback(small_job(rounds=4), tmp_path)
    expected = {}
    for played in rounds.play(rounds.start()):
        cohort = {m.client for m in played.messages}
        expected |= dict.fromkeys(cohort, played.row.round)
        residuals = rounds.stores.residuals
        assert residuals.versions == expected
        digests = {tree.digest(residuals.get(client)) for client in expected}
        assert len(digests) == len(expected)  # each its own
    weights = played.position.server.weights
    for client in range(5):
        residual = residuals.get(client)
        assert list(residual) == ([f"weights/{n}" for n in weights] if client in expected else [])
        for name, lost in residual.items():
            assert lost.shape == weights[name.removeprefix("weights/")].shape
            assert 0 < lost.abs().max() < 0.1  # a 127th of the largest weight


def test_a_reply_that_is_refused_leaves_the_residual_as_it_was(tmp_path):
    rounds = with_feedback(small_job(rounds=2, cohort=5), tmp_path)
    inner, position = rounds.execute, rounds.start()

    def execute(requests):
        for response in inner(requests):
            if getattr(response, "client", None) == 2 and rounds.stores.residuals.versions:
                broken = response.up._replace(data=response.up.data[:-1])
                yield response._replace(up=broken)
            else:
                yield response

    rounds.execute = execute
    first, second = rounds.play(position)
    assert (first.row.failed, second.row.failed) == (0, 1)
    assert rounds.stores.residuals.versions == {0: 2, 1: 2, 2: 1, 3: 2, 4: 2}


def test_without_error_feedback_there_are_no_residuals(tmp_path):
    rounds = rounds_of(small_job(rounds=1), tmp_path, down=NAMED["int8"])
    list(rounds.play(rounds.start()))
    assert rounds.stores.residuals.versions == {}


def test_exact_messages_leave_residuals_of_zero(tmp_path):
    rounds = with_feedback(small_job(rounds=1), tmp_path, "fp32")
    plain = rounds_of(small_job(rounds=1), tmp_path / "plain")
    ((played,), (expected,)) = (list(r.play(r.start())) for r in (rounds, plain))
    assert tree.equal(played.position.server, expected.position.server)
    for client in rounds.stores.residuals.versions:
        assert not any(t.any() for t in rounds.stores.residuals.get(client).values())


def message(weights, mask=None):
    mask = torch.ones_like(weights).bool() if mask is None else mask
    gates = {"g": weights.abs(), "flag": mask.clone(), "steps": torch.tensor([3])}
    return Up({"w": mask}, {"w": weights, "b": weights[:3]}, gates, {"s": weights}, 1)


def sent(meant, precision, key=0):
    data = encode(meant, coding=Coding(NAMED[precision], Key(key))).data
    return Decoder().decode(data, Up)


@pytest.mark.parametrize("precision", ROUNDED)
def test_the_mean_of_what_arrives_of_a_constant_message_converges_to_it(precision):
    # Sum of n arrivals = n x - last residual, so the mean misses x by at most one rounding / n.
    weights = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    constant = message(weights.float())
    residual, total = {}, torch.zeros(500, dtype=torch.float64)
    once = (sent(constant, precision).weights["w"] - constant.weights["w"]).abs().max()
    for number in range(1, 65):
        meant = add_residual(constant, residual)
        arrived = sent(meant, precision, number)
        residual = residual_of(meant, arrived)
        total += arrived.weights["w"]
        missed = (total / number - weights.float()).abs().max()
        assert missed <= 2.1 * once / number + 1e-6
        left = number * weights.float().double() - total - residual["weights/w"]
        assert left.abs().max() < 1e-5  # nothing is lost for good
    assert missed < once / 20


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_without_feedback_deterministic_rounding_never_converges(precision):
    constant = message(torch.full((5,), 1 + 2**-12))  # lies below half a step of either
    arrived = [sent(constant, precision, key).weights["w"] for key in range(3)]
    assert all(torch.equal(a, torch.ones(5)) for a in arrived)


def test_dropped_values_leave_no_residual():
    weights = torch.randn(100, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(100) % 3 == 0
    weights[1], weights[2] = float("nan"), float("inf")  # outside the mask: never sent
    meant = message(weights, mask)._replace(gates={})
    residual = residual_of(meant, sent(meant, "bf16"))
    lost = residual["weights/w"]
    assert not lost[~mask].any()
    assert torch.equal(lost[mask], weights[mask] - weights[mask].bfloat16().float())
    assert lost[mask].any()


def test_only_rounded_fields_have_residuals():
    meant = message(torch.randn(10))
    residual = residual_of(meant, sent(meant, "int8"))
    assert list(residual) == ["weights/w", "weights/b", "gates/g"]
    again = add_residual(meant, residual)
    assert tree.equal(again.shares, meant.shares)
    assert tree.equal(again.mask, meant.mask)
    assert again.gates["flag"].dtype == torch.bool
    assert torch.equal(again.weights["w"], meant.weights["w"] + residual["weights/w"])


def test_shapes_that_changed_start_afresh():
    long, short = message(torch.randn(10)), message(torch.randn(6))
    residual = residual_of(long, sent(long, "int8"))
    again = add_residual(short, residual)
    assert torch.equal(again.weights["w"], short.weights["w"])
    assert torch.equal(again.weights["b"], short.weights["b"] + residual["weights/b"])
    assert tree.equal(add_residual(short, {}), short)
