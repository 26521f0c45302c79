"""The local loop against hand-written torch loops."""

from typing import NamedTuple

import pytest
import torch
from torch.nn.functional import conv2d, linear, mse_loss

from fedsieve.core import tree
from fedsieve.core.keys import fold, normal, uniform
from fedsieve.core.message import Params
from fedsieve.core.method import Batch
from fedsieve.optim.local import gradient, score, train
from fedsieve.optim.optimisers import SGD, Adam, Adamax

KEY = fold(0, "local")


class Gated(NamedTuple):
    weights: Params
    thresholds: Params


def _start():
    """A convolution, a linear layer and a bias; the linear weight is not contiguous."""
    return {
        "conv": normal(fold(KEY, "conv"), (3, 2, 3, 3)) / 4,
        "fc": normal(fold(KEY, "fc"), (12, 2)).T / 4,
        "bias": torch.zeros(2),
    }


def _batches(count, start=0, size=5):
    return [
        Batch(normal(fold(KEY, "x", i), (size, 2, 4, 4)), normal(fold(KEY, "y", i), (size, 2)))
        for i in range(start, start + count)
    ]


def _loss(params, batch, key=None):
    hidden = conv2d(batch.x, params["conv"]).relu().flatten(1)
    return mse_loss(linear(hidden, params["fc"], params["bias"]), batch.y)


def _by_hand(start, batches, make, clip=None, fixed=(), project=None, loss=_loss):
    """The same training with torch.optim; returns parameters and the loss of every step."""
    params = {n: v.detach().clone().requires_grad_(n not in fixed) for n, v in start.items()}
    moving = [p for p in params.values() if p.requires_grad]
    optimiser, losses = make(moving), []
    for batch in batches:
        optimiser.zero_grad()
        value = loss(params, batch)
        value.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(moving, clip)
        optimiser.step()
        if project is not None:
            with torch.no_grad():
                for name, new in project(params).items():
                    params[name].copy_(new)
        losses.append(float(value.detach()))
    return {n: v.detach() for n, v in params.items()}, losses


def _assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (SGD(0.9, 0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
        (Adamax(), lambda p: torch.optim.Adamax(p, lr=0.1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_training_is_the_plain_torch_loop(ours, make):
    batches = _batches(7)
    trained = train(_loss, _start(), batches, ours, lr=0.1, key=KEY)
    expected, losses = _by_hand(_start(), batches, make)
    _assert_close(trained.params, expected)
    assert trained.loss == pytest.approx(sum(losses) / 7, rel=1e-5)
    assert (trained.steps, trained.processed) == (7, 35)


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e6])
def test_clipping_is_torch_s(clip):
    batches = _batches(4)
    trained = train(_loss, _start(), batches, SGD(), lr=0.1, key=KEY, clip_norm=clip)
    expected, _ = _by_hand(_start(), batches, lambda p: torch.optim.SGD(p, lr=0.1), clip)
    _assert_close(trained.params, expected)


@pytest.mark.parametrize(
    "optimiser", [SGD(0.9), Adam(amsgrad=True)], ids=lambda value: type(value).__name__
)
def test_two_calls_that_hand_over_moments_are_one_long_call_bit_for_bit(optimiser):
    long = train(_loss, _start(), _batches(6), optimiser, lr=0.1, key=KEY)
    first = train(_loss, _start(), _batches(2), optimiser, lr=0.1, key=KEY)
    held = tree.clone(first.moments)
    rest = _batches(4, start=2)
    second = train(_loss, first.params, rest, optimiser, lr=0.1, key=KEY, moments=first.moments)
    assert tree.equal(second.params, long.params)
    assert tree.equal(second.moments, long.moments)
    assert tree.equal(first.moments, held)  # the moments handed over are not changed


@pytest.mark.parametrize("optimiser", [SGD(0.9), Adam()], ids=lambda value: type(value).__name__)
def test_moments_read_from_a_file_are_as_good_as_those_in_memory(optimiser):
    # Files hold them contiguous, the loop keeps those of kernels channels-last.
    first = train(_loss, _start(), _batches(2), optimiser, lr=0.1, key=KEY)
    stored = tree.map_leaves(lambda leaf: leaf.clone().contiguous(), first.moments)
    after = [
        train(_loss, first.params, _batches(3), optimiser, lr=0.1, key=KEY, moments=moments)
        for moments in (first.moments, stored)
    ]
    assert tree.equal(after[0], after[1])


def test_each_field_follows_its_own_optimiser_and_rate():
    def loss(params, batch, key=None):
        gate = torch.sigmoid(params.weights["fc"].detach().abs() - params.thresholds["fc"])
        return _loss(params.weights | {"fc": params.weights["fc"] * gate}, batch)

    start = Gated(_start(), {"fc": torch.full((2, 12), 0.1)})
    batches = _batches(5)
    trained = train(loss, start, batches, (SGD(0.9), Adamax()), lr=(0.1, 0.02), key=KEY)

    weights = {n: v.detach().clone().requires_grad_() for n, v in start.weights.items()}
    thresholds = {n: v.detach().clone().requires_grad_() for n, v in start.thresholds.items()}
    optimisers = [
        torch.optim.SGD(weights.values(), lr=0.1, momentum=0.9),
        torch.optim.Adamax(thresholds.values(), lr=0.02),
    ]
    for batch in batches:
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss(Gated(weights, thresholds), batch).backward()
        for optimiser in optimisers:
            optimiser.step()
    assert type(trained.params) is Gated
    _assert_close(trained.params.weights, {n: v.detach() for n, v in weights.items()})
    _assert_close(trained.params.thresholds, {n: v.detach() for n, v in thresholds.items()})
    assert [set(m) for m in trained.moments] == [
        {"step", *(f"momentum/{n}" for n in weights)},
        {"step", "first/fc", "largest/fc"},
    ]


def test_one_optimiser_moves_all_fields_of_a_tuple():
    start = Gated({"a": torch.ones(2)}, {"a": torch.ones(2)})
    trained = train(
        lambda p, batch, key: p.weights["a"].sum() + 2 * p.thresholds["a"].sum(),
        start, _batches(1), SGD(), lr=0.5, key=KEY,
    )  # fmt: skip
    assert trained.params.weights["a"].tolist() == [0.5, 0.5]
    assert trained.params.thresholds["a"].tolist() == [0.0, 0.0]


def test_the_projection_is_applied_after_every_step():
    def project(params):
        return params | {"fc": params["fc"].clamp(-0.125, 0.125)}

    batches, seen = _batches(4), []

    def loss(params, batch, key):
        seen.append(float(params["fc"].detach().abs().max()))
        return _loss(params, batch)

    trained = train(loss, _start(), batches, SGD(0.9), lr=0.5, key=KEY, project=project)
    expected, _ = _by_hand(
        _start(), batches, lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), project=project
    )
    _assert_close(trained.params, expected)
    assert seen[0] > 0.125
    assert max(seen[1:]) <= 0.125
    assert trained.params["fc"].abs().max() <= 0.125


def test_fixed_tensors_get_no_gradient_but_the_loss_may_write_them():
    start = _start() | {"running_mean": torch.zeros(2), "seen": torch.tensor(0)}

    def loss(params, batch, key):
        assert not params["running_mean"].requires_grad
        params["running_mean"].add_(1)
        return _loss(params, batch)

    fixed = frozenset({"running_mean", "seen", "bias"})
    trained = train(loss, start, _batches(3), SGD(0.9), lr=0.1, key=KEY, fixed=fixed)
    assert trained.params["running_mean"].tolist() == [3, 3]
    assert torch.equal(trained.params["bias"], start["bias"])
    assert set(trained.moments[0]) == {"step", "momentum/conv", "momentum/fc"}
    expected, _ = _by_hand(
        _start(), _batches(3), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), fixed={"bias"}
    )
    _assert_close({n: trained.params[n] for n in expected}, expected)


def test_the_start_is_not_changed_and_not_shared():
    start = _start()
    before = tree.clone(start)
    for batches in ([], _batches(2)):
        trained = train(_loss, start, batches, SGD(), lr=0.1, key=KEY)
        for value in trained.params.values():
            value.add_(1)
        assert tree.equal(start, before)
        assert not any(value.requires_grad for value in start.values())


def test_without_batches_the_start_comes_back():
    trained = train(_loss, _start(), [], Adam(), lr=0.1, key=KEY)
    assert tree.equal(trained.params, _start())
    assert (trained.loss, trained.steps, trained.processed) == (0.0, 0, 0)
    assert int(trained.moments[0]["step"]) == 0


def test_results_are_contiguous_and_without_gradient_whatever_the_layout_of_the_start():
    start = _start()
    start["conv"] = start["conv"].contiguous(memory_format=torch.channels_last)
    trained = train(_loss, start, _batches(2), SGD(), lr=0.1, key=KEY)
    assert all(v.is_contiguous() and not v.requires_grad for v in trained.params.values())
    plain = train(_loss, _start(), _batches(2), SGD(), lr=0.1, key=KEY)
    assert tree.equal(trained.params, plain.params)


def test_every_step_has_a_key_of_its_own_and_equal_keys_give_equal_runs():
    seen = []

    def loss(params, batch, key):
        seen.append(key)
        return _loss(params, batch) * uniform(key, (1,)).sum()

    runs = [train(loss, _start(), _batches(5), SGD(), lr=0.1, key=KEY) for _ in range(2)]
    assert len(set(seen)) == 5
    assert seen[:5] == seen[5:]
    assert tree.equal(runs[0], runs[1])


def test_a_tensor_the_loss_does_not_use_stays():
    start = _start() | {"unused": torch.ones(3)}
    trained = train(_loss, start, _batches(2), SGD(0.9), lr=0.1, key=KEY)
    assert trained.params["unused"].tolist() == [1, 1, 1]


def test_a_field_without_an_optimiser_stays_and_keeps_its_moments():
    start = Gated(_start(), {"fc": torch.ones(2)})

    def loss(own, batch, key):
        return _loss(own.weights, batch) * own.thresholds["fc"].sum()

    first = train(loss, start, _batches(2), (SGD(0.9), None), lr=0.1, key=KEY)
    assert first.params.thresholds["fc"].tolist() == [1, 1]
    assert first.moments[1] == {}
    alone = train(
        lambda params, batch, key: 2 * _loss(params, batch), _start(), _batches(2), SGD(0.9),
        lr=0.1, key=KEY,
    )  # fmt: skip
    assert tree.equal(first.params.weights, alone.params)
    second = train(
        loss, first.params, _batches(1), (None, SGD(0.9)), lr=0.1, key=KEY, moments=first.moments
    )
    assert tree.equal(second.params.weights, first.params.weights)
    assert tree.equal(second.moments[0], first.moments[0])
    assert int(second.moments[1]["step"]) == 1
    moved = 1 - 0.1 * float(_loss(first.params.weights, _batches(1)[0]))
    assert second.params.thresholds["fc"].tolist() == pytest.approx([moved] * 2)


def test_the_gradient_is_that_of_autograd_and_statistics_come_back_as_their_change():
    start = Gated(_start(), {"level": torch.ones(2), "count": torch.zeros(())})
    batch = _batches(1)[0]

    def objective(params, batch, key):
        params.thresholds["count"].add_(1)
        return _loss(params.weights, batch) + params.thresholds["level"].square().sum()

    before = tree.clone(start)
    found, loss = gradient(objective, start, batch, key=KEY, fixed=frozenset({"count"}))
    assert tree.equal(start, before)
    leaves = {n: w.clone().requires_grad_() for n, w in start.weights.items()}
    expected = torch.autograd.grad(_loss(leaves, batch), list(leaves.values()))
    for name, value in zip(leaves, expected, strict=True):
        torch.testing.assert_close(found.weights[name], value)
        assert found.weights[name].is_contiguous()
    assert found.thresholds["level"].tolist() == [2.0, 2.0]
    assert float(found.thresholds["count"]) == -1  # a step of rate 1 along it makes it 1
    assert loss == pytest.approx(float(_loss(start.weights, batch)) + 2)


def test_each_field_is_clipped_by_its_own_norm():
    start = Gated({"w": torch.zeros(2)}, {"t": torch.zeros(2)})

    def objective(at, batch, key):
        return 3 * at.weights["w"][0] + 4 * at.weights["w"][1] + 7 * at.thresholds["t"][0]

    batches = [Batch(torch.zeros(1), torch.zeros(1))]
    trained = train(
        objective, start, batches, (SGD(), SGD()), lr=1.0, key=KEY, clip_norm=(1.0, None)
    )
    torch.testing.assert_close(trained.params.weights["w"], torch.tensor([-0.6, -0.8]))
    torch.testing.assert_close(trained.params.thresholds["t"], torch.tensor([-7.0, 0.0]))


def test_the_score_of_a_model_is_over_all_batches_of_a_client():
    """Two of three hits, in batches of two and one: not the mean of a half and one."""

    class Data:
        def ordered(self):
            yield Batch(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]))
            yield Batch(torch.tensor([1.0]), torch.tensor([1.0]))

    class Threshold:
        def predict(self, params, x):
            return (x > params["at"]).float()

        def tally(self, outputs, y):
            return torch.tensor([(outputs == y).sum(), len(y)], dtype=torch.float64)

        def score(self, tally):
            return (tally[0] / tally[1]).item()

    assert score(Threshold(), {"at": torch.tensor(0.5)}, Data()) == pytest.approx(2 / 3)
