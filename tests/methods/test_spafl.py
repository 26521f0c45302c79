"""SpaFL against updates written out by hand (specification spafl, sections 3 to 7 and 11)."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold, normal
from fedsieve.core.method import Batch, Round
from fedsieve.jobs.config import make
from fedsieve.methods.spafl import Down, Local, Server, SpaFL, State, Trained, Up
from fedsieve.models.task import ModelTask
from fedsieve.optim.optimisers import SGD
from fedsieve.recipes.papers.sizes import COLOUR32, GREY28, sizes
from fedsieve.sparsity import compaction, masks
from small import rounds_of, small_job

KEY = fold(0, "spafl")
LR, ALPHA = 0.5, 0.1
NAME = "0.weight"
CODE = make({"method": "spafl", "preset": "code"}).options


@dataclass(frozen=True)
class Given:
    """A client whose round consists of the given mini-batches."""

    batches: tuple[Batch, ...]
    epochs: int = 1

    @property
    def examples(self):
        return sum(len(b.y) for b in self.batches) // self.epochs

    @property
    def steps(self):
        return len(self.batches)

    def work(self, key):
        return iter(self.batches)


def batch(number, features=5, classes=4, size=6):
    x = normal(fold(KEY, "x", number), (size, features))
    return Batch(x, torch.arange(size) % classes)


def linear_task(features=5, classes=4):
    return ModelTask(
        lambda: nn.Sequential(nn.Linear(features, classes, bias=False)), "classes", (features,)
    )


def one_layer(**options):
    plain = {"lr": LR, "optimiser": SGD(), "sparsity_weight": ALPHA, "reg_warmup": None}
    return SpaFL(task=linear_task(), **CODE | plain | {"importance": False} | options)


def start():
    """Weights, and thresholds that prune some rows and some weights."""
    weights = normal(fold(KEY, "w"), (4, 5)) * torch.tensor([[0.2], [0.4], [0.8], [1.2]])
    return weights, torch.tensor([0.3, 0.2, 0.5, 0.4])


def work(method, batches, epochs=1, rounds=0):
    weights, thresholds = start()
    own = Local({NAME: weights}, {NAME: thresholds})
    return method.train(own, (), Given(tuple(batches), epochs), rounds, KEY)


def gradients(w, tau, p, b, granularity, weight_ste):
    """(dw, dtau) of the cross-entropy by the formulas of section 3, in numpy."""
    x, y = b.x.numpy().astype(float), b.y.numpy()
    z = x @ (w * p).T
    prob = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    g = (prob - np.eye(len(w))[y]).T @ x / len(y)
    dw = g * p
    if weight_ste and granularity == "element":
        dw = dw + g * np.abs(w)
    elif weight_ste:
        dw = dw + np.sign(w) / w.shape[1] * (g * w).sum(1, keepdims=True)
    return dw, -(g * w).sum(1)


def mask_of(w, tau, granularity):
    size = np.abs(w)
    if granularity == "filter":
        size = np.repeat(size.mean(1, keepdims=True), w.shape[1], 1)
    return (size > tau[:, None]).astype(float)


def close(ours, theirs):
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-6)


both = pytest.mark.parametrize("granularity", ["element", "filter"])


@both
@pytest.mark.parametrize("weight_ste", [True, False])
def test_one_joint_step_is_the_one_written_out(granularity, weight_ste):
    method = one_layer(granularity=granularity, weight_ste=weight_ste)
    w, tau = (t.numpy().astype(float) for t in start())
    p = mask_of(w, tau, granularity)
    assert 0 < p.mean() < 1
    dw, dtau = gradients(w, tau, p, batch(0), granularity, weight_ste)
    trained = work(method, [batch(0)])
    close(trained.own.weights[NAME], w - LR * dw)
    close(trained.own.thresholds[NAME], tau - LR * (dtau - ALPHA * np.exp(-tau)))
    assert np.array_equal(trained.mask[NAME].numpy(), p.astype(bool))


@both
@pytest.mark.parametrize("refresh_mask", [True, False])
def test_split_moves_weights_under_a_fixed_mask_and_thresholds_last(granularity, refresh_mask):
    method = one_layer(
        granularity=granularity, weight_ste=False, training="split", refresh_mask=refresh_mask
    )
    w, tau = (t.numpy().astype(float) for t in start())
    fixed = mask_of(w, tau, granularity)
    for number in (0, 1):  # two of three epochs with one mini-batch each
        w = w - LR * gradients(w, tau, fixed, batch(number), granularity, weight_ste=False)[0]
    p = mask_of(w, tau, granularity) if refresh_mask else fixed
    dtau = gradients(w, tau, p, batch(2), granularity, weight_ste=False)[1]
    trained = work(method, [batch(0), batch(1), batch(2)], epochs=3)
    close(trained.own.weights[NAME], w)
    close(trained.own.thresholds[NAME], tau - LR * (dtau - ALPHA * np.exp(-tau)))


def test_split_joint_moves_the_weights_in_the_last_epoch_as_well():
    method = one_layer(weight_ste=False, training="split_joint")
    w, tau = (t.numpy().astype(float) for t in start())
    p = mask_of(w, tau, "filter")
    w = w - LR * gradients(w, tau, p, batch(0), "filter", weight_ste=False)[0]
    p = mask_of(w, tau, "filter")
    dw, dtau = gradients(w, tau, p, batch(1), "filter", weight_ste=False)
    trained = work(method, [batch(0), batch(1)], epochs=2)
    close(trained.own.weights[NAME], w - LR * dw)
    close(trained.own.thresholds[NAME], tau - LR * (dtau - ALPHA * np.exp(-tau)))


def test_split_needs_two_epochs():
    with pytest.raises(ConfigError, match=r"epochs=1 with 2 mini.*Set 2"):
        work(one_layer(training="split"), [batch(0), batch(1)])
    with pytest.raises(ConfigError, match=r"epochs=2 with 1 mini-batches.*joint"):
        work(one_layer(training="split"), [batch(0)], epochs=2)


def test_weight_decay_is_of_weights_alone():
    plain, decayed = (
        work(one_layer(sparsity_weight=0.0, optimiser=SGD(weight_decay=d)), [batch(0)]).own
        for d in (0.0, 0.1)
    )
    close(decayed.weights[NAME], plain.weights[NAME] - LR * 0.1 * start()[0])
    assert torch.equal(decayed.thresholds[NAME], plain.thresholds[NAME])


@pytest.mark.parametrize(
    ("regulariser", "slope"), [("exp", -1.0), ("inverse", -1 / 0.1**2)], ids=["exp", "inverse"]
)
@pytest.mark.parametrize(("rounds", "share"), [(0, 1 / (1 + math.exp(5))), (1, 0.9933071490757153)])
def test_the_regulariser_alone_raises_thresholds_by_rate_and_weight(
    regulariser, slope, rounds, share
):
    """`inverted` gives thresholds within 1 of the magnitudes no gradient of the loss."""
    method = one_layer(ste="inverted", regulariser=regulariser, reg_warmup=1.0)
    own = Local({NAME: start()[0] / 4}, {NAME: torch.zeros(4)})
    trained = method.train(own, (), Given((batch(0),)), rounds, KEY)
    close(trained.own.thresholds[NAME], np.full(4, -LR * ALPHA * share * slope))


def test_momentum_lives_on_over_rounds_unless_told_not_to():
    for persist in (True, False):
        method = one_layer(
            optimiser=SGD(momentum=0.9), persist_momentum=persist, ste="inverted",
            sparsity_weight=0.0, weight_ste=False,
        )  # fmt: skip
        state = State(Local({NAME: start()[0]}, {NAME: torch.zeros(4)}), {}, ())
        down = Down({NAME: torch.zeros(4)}, {}, {}, 0)
        moved = []
        for number in (0, 1):
            before = state.own.weights[NAME]
            _, state, _ = method.client_update(down, state, Given((batch(number),)), KEY)
            moved.append((state.own.weights[NAME] - before).numpy())
            w = before.numpy().astype(float)
            grad = gradients(w, np.zeros(4), np.ones((4, 5)), batch(number), "filter", False)[0]  # noqa: FBT003
            inherited = 0.9 * moved[0] if number and persist else 0
            np.testing.assert_allclose(moved[-1], inherited - LR * grad, atol=1e-6)
        assert bool(state.moments) == persist


def test_the_gradient_of_weights_and_thresholds_is_clipped_together():
    free, bound = work(one_layer(), [batch(0)]), work(one_layer(clip_norm=0.01), [batch(0)])
    weights, thresholds = start()

    def length(trained):
        return math.hypot(
            float((trained.own.weights[NAME] - weights).norm()),
            float((trained.own.thresholds[NAME] - thresholds).norm()),
        )

    assert length(free) > LR * 0.02
    assert length(bound) == pytest.approx(LR * 0.01, rel=1e-3)


@pytest.mark.parametrize("clamp", [True, False])
def test_clamps_hold_after_every_step(clamp):
    """Three steps; clamped after the last alone, the others would have gone elsewhere."""
    low, high = (0.0, 1.0) if clamp else (-np.inf, np.inf)
    w, tau = 5 * start()[0].double().numpy(), np.array([-0.5, 0.3, 0.9, 2.0])
    own = Local({NAME: torch.tensor(w)}, {NAME: torch.tensor(tau)})
    batches = [batch(number) for number in range(3)]
    for b in batches:
        p = mask_of(w, tau, "filter")
        assert p.any()  # nothing to reset
        dw, dtau = gradients(w, tau, p, b, "filter", weight_ste=True)
        w = np.clip(w - LR * dw, -high, high)
        tau = np.clip(tau - LR * (dtau - ALPHA * np.exp(-tau)), low, high)
    given = Given(tuple(Batch(b.x.double(), b.y) for b in batches))
    trained = one_layer(clamp=clamp).train(own, (), given, 0, KEY)
    close(trained.own.weights[NAME], w)
    close(trained.own.thresholds[NAME], tau)
    assert (np.abs(w).max() <= 1) == clamp
    assert (tau.min() >= 0 and tau.max() <= 1) == clamp


def test_a_layer_pruned_away_is_open_on_the_next_forward_pass():
    """`window` gives thresholds at 10 no gradient: they stay until they are reset."""
    method = one_layer(ste="window", sparsity_weight=0.0)
    own = Local({NAME: start()[0]}, {NAME: torch.full((4,), 10.0)})
    once = method.train(own, (), Given((batch(0),)), 0, KEY)
    assert not once.mask[NAME].any()
    assert once.own.thresholds[NAME].tolist() == [10.0] * 4
    twice = method.train(own, (), Given((batch(0), batch(1))), 0, KEY)
    assert twice.mask[NAME].all()
    assert float(twice.own.thresholds[NAME].max()) < 10
    never = replace(method, reset_density=0.0)
    assert not never.train(own, (), Given((batch(0), batch(1))), 0, KEY).mask[NAME].any()


def test_a_layer_pruned_away_is_open_under_a_fixed_mask_too():
    """split: two epochs of weights, in the second of which the mask is made again after all."""
    method = one_layer(ste="window", sparsity_weight=0.0, training="split", weight_ste=False)
    own = Local({NAME: start()[0]}, {NAME: torch.full((4,), 10.0)})
    batches = Given((batch(0), batch(1), batch(2)), epochs=3)
    after = method.train(own, (), batches, 0, KEY)
    expected = start()[0].numpy().astype(float)
    opened = np.ones_like(expected)  # the first step, with everything pruned, moves nothing
    expected -= LR * gradients(expected, None, opened, batch(1), "filter", weight_ste=False)[0]
    close(after.own.weights[NAME], expected)


def test_a_layer_pruned_away_is_deployed_open_but_sent_as_trained():
    method = one_layer(ste="window", sparsity_weight=0.0)
    state = State(Local({NAME: start()[0]}, {NAME: torch.zeros(4)}), {}, ())
    down = Down({NAME: torch.full((4,), 10.0)}, {}, {}, 0)
    up, after, _ = method.client_update(down, state, Given((batch(0),)), KEY)
    assert up.thresholds[NAME].tolist() == [10.0] * 4
    assert after.own.thresholds[NAME].tolist() == [0.0] * 4
    assert bool((method.model(method.init_server(KEY), after)[NAME] != 0).all())


def conv_method(**options):
    model = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Flatten(), nn.Linear(12, 4))
    task = ModelTask(lambda: model, "classes", (2, 4, 4))
    return SpaFL(task=task, unmasked=("2",), **options)


@pytest.mark.parametrize(("norm", "count"), [("kernel", 9), ("fan_in", 18)])
def test_rising_thresholds_shrink_the_dominant_side_of_a_row(norm, count):
    """Row 0 sums to more than 0, row 1 to less, row 2 to 0."""
    method = conv_method(importance_norm=norm)
    weight = torch.full((3, 2, 3, 3), 0.5)
    weight[1] = -0.5
    weight[2, 0] = -0.5
    state = method.init_client(0, KEY)
    state = state._replace(own=state.own._replace(weights=state.own.weights | {NAME: weight}))
    change = torch.tensor([0.18, 0.18, 0.18])
    zeros = {NAME: torch.zeros(3)}
    for sign in (1, -1):
        heard = method._with_thresholds(
            Down(zeros, {NAME: sign * change}, {}, 1), state, is_sampled=True
        )
        moved = heard.weights[NAME] - weight
        step = sign * 0.18 / count
        expected = torch.tensor([-step, step, 0.0]).view(3, 1, 1, 1).expand_as(moved)
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-7)
        assert heard.weights["2.weight"] is state.own.weights["2.weight"]
    still = method._with_thresholds(Down(zeros, zeros, {}, 1), state, is_sampled=True)
    assert torch.equal(still.weights[NAME], weight)


def test_the_server_takes_the_plain_mean_and_knows_its_change():
    method = one_layer()
    server = Server({NAME: torch.tensor([1.0, 2.0, 3.0, 4.0])}, {}, {}, 7)
    replies = [Up({NAME: torch.full((4,), v)}, {}) for v in (0.0, 1.0, 5.0)]
    after = method.server_update(server, Round(replies), KEY)
    assert after.thresholds[NAME].tolist() == [2.0] * 4
    assert after.change[NAME].tolist() == [1.0, 0.0, -1.0, -2.0]
    assert after.rounds == 8


def played(tmp_path, **settings):
    job = small_job(**{"method": "spafl", "preset": "code"} | settings)
    rounds = rounds_of(job, tmp_path)
    *_, last = rounds.play(rounds.start())
    return job.method, rounds.stores.states, last


def test_without_pruning_and_exchange_of_anything_it_is_local_training(tmp_path):
    """Thresholds stay 0: no regulariser, and `inverted` passes no gradient of the loss on."""
    _, states, last = played(
        tmp_path / "a", sparsity_weight=0.0, ste="inverted", weight_ste=False, importance=False
    )
    job = small_job(method="local_only", preset="paper", optimiser="sgd(momentum=0.9)")
    rounds = rounds_of(job, tmp_path / "b")
    *_, alone = rounds.play(rounds.start())
    assert states.known() == rounds.stores.states.known()
    for client in states.known():
        assert tree.equal(states.get(client).own.weights, rounds.stores.states.get(client).weights)
    assert last.row.local_accuracy == alone.row.local_accuracy
    assert all(not t.any() for t in last.position.server.thresholds.values())


def test_a_client_never_asked_keeps_the_common_start(tmp_path):
    method, states, last = played(tmp_path, clients=8, cohort=2, rounds=2)
    strangers = set(range(8)) - set(states.known())
    assert strangers
    assert last.position.seen == set(states.known())
    init = fold(7, "init")
    for client in strangers:
        deployed = method.model(last.position.server, states.get(client))
        assert tree.equal(deployed, method.init_client(0, init).own.weights)
    own = last.evaluation.client_accuracy
    seen = [own[c] for c in states.known()]
    assert last.row.seen_accuracy == pytest.approx(sum(seen) / len(seen))
    assert last.row.local_accuracy == pytest.approx(sum(own) / 8)
    assert all(last.evaluation.client_density[c] == 1 for c in strangers)


def test_receivers_all_means_everyone_has_the_new_thresholds_and_follows_their_change(tmp_path):
    method, states, last = played(
        tmp_path, receivers="all", importance_scope="all", clients=5, cohort=2, rounds=1
    )
    assert states.known() == list(range(5))
    assert len(last.position.seen) < 5
    server = last.position.server
    down = method.broadcast(server, KEY)
    assert down.change == {}
    for client in range(5):
        after = method.observe(down, states.get(client))
        assert tree.equal(after.own.thresholds, server.thresholds)
        expected = masks.apply(after.own.weights, method.rule.settled(*after.own)[1])
        assert tree.equal(method.model(server, states.get(client)), expected)
    stranger = min(set(range(5)) - last.position.seen)
    start_ = method.init_client(stranger, fold(7, "init")).own.weights
    moved = method.observe(down, states.get(stranger)).own.weights
    for layer in method.masked:  # the change since the start has been applied, nothing else
        w, total = start_[layer.weight], server.thresholds[layer.weight]
        step = w.sum(1).sign() * total / w.shape[1]
        torch.testing.assert_close(moved[layer.weight], w - step[:, None], rtol=0, atol=1e-6)


def test_the_cohort_alone_hears_of_thresholds_sent_to_it(tmp_path):
    for receivers, count in (("sampled", 2), ("all", 5)):
        _, _, last = played(
            tmp_path / receivers, receivers=receivers, clients=5, cohort=2, rounds=1
        )
        assert len([m for m in last.messages if m.direction == "down"]) == count


def test_without_sharing_no_values_travel_and_thresholds_differ(tmp_path):
    _, states, last = played(tmp_path, share=False, rounds=2)
    assert last.row.up_paper_bytes == last.row.down_paper_bytes == 0
    assert last.row.up_bytes < 100 * 3
    first, second = (states.get(c).own.thresholds for c in states.known()[:2])
    assert any(not torch.equal(first[n], second[n]) for n in first)


T, K, N = 500, 10, 100


@pytest.mark.parametrize(
    ("model", "shape", "classes", "options", "rounds", "printed", "sampled"),
    [
        ("lenet5_caffe", GREY28, 10, {}, T, "1.0208", "0.1856"),
        ("cnn7", COLOUR32, 10, {"communicate_norm": True}, T, "2.4957", "0.4538"),
        ("cnn7", COLOUR32, 10, {}, T, "1.1440", "0.2080"),
        ("resnet8", COLOUR32, 100, {}, T, "0.7674", "0.1395"),
        ("lstm", GREY28, 10, {"unmasked": ("fc",)}, 299, "2.1555", None),
        ("resnet18", COLOUR32, 100, {"unmasked": ("fc",)}, T, "8.4480", None),
        ("resnet18(width=32)", COLOUR32, 100, {"unmasked": ("fc",)}, 2 * T, "8.4480", None),
    ],
)
def test_paper_bytes_give_the_totals_of_the_paper(
    model, shape, classes, options, rounds, printed, sampled
):
    """32 T n (K up + N down), and K down where clients are unavailable (section 7)."""
    method = SpaFL(task=sizes(model, shape, classes).task, **CODE | options)
    server = method.init_server(KEY)
    down = method.paper_bytes(method.broadcast(server, KEY))
    up = method.paper_bytes(Up(server.thresholds, server.norms))

    def gbit(receivers):
        return f"{8 * rounds * (K * up + receivers * down) / 1e9:.4f}"

    assert gbit(N) == printed
    assert sampled is None or gbit(K) == sampled


def test_both_counts_of_macs_follow_from_the_densities_of_layers():
    method = one_layer()
    trained = work(method, [batch(0), batch(1)])
    share = float(trained.mask[NAME].float().mean())
    assert 0 < share < 1
    found = method._flops(trained, 1)
    examples, macs, rows, size = 12, 20, 4, 20
    assert found["macs_appendix"] == pytest.approx(examples * macs * (1 + 2 * share))
    assert found["macs_code"] == pytest.approx(examples * macs * 3 * share + rows * 2 + size)


@pytest.mark.parametrize(
    ("options", "rounds", "updates"),
    [
        ({"importance": True}, 1, 1),
        ({"importance": True}, 0, 0),  # nothing has changed yet
        ({"importance": True, "share": False}, 1, 0),  # no change is ever heard of
        ({"importance": False}, 1, 0),
    ],
)
def test_the_importance_update_is_charged_where_there_is_one(options, rounds, updates):
    size = 20
    method = one_layer(**options)
    trained = work(method, [batch(0), batch(1)], rounds=rounds)
    free = replace(method, importance=False)._flops(trained, rounds)
    paid = method._flops(trained, rounds)
    assert paid["macs_appendix"] - free["macs_appendix"] == pytest.approx(1.5 * size * updates)
    assert paid["macs_code"] == free["macs_code"]


def pruned(method, share):
    """A three-layer client of which `share` of the hidden rows are pruned."""
    state = method.init_client(0, KEY)
    thresholds = {}
    for layer in method.masked:
        size = state.own.weights[layer.weight].abs().flatten(1).mean(1)
        cut_at = size.sort().values[int(share * len(size))]
        thresholds[layer.weight] = (size < cut_at).float()  # 1 prunes, 0 keeps
    thresholds[method.masked[-1].weight].zero_()
    return Local(state.own.weights, thresholds)


def deep(**options):
    def model():
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, bias=False), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * 16, 10, bias=False), nn.ReLU(), nn.Linear(10, 4, bias=False),
        )  # fmt: skip

    task = ModelTask(model, "classes", (1, 6, 6))
    return SpaFL(task=task, **CODE | options | {"lr": 0.1})


def image_batches(count):
    images = [normal(fold(KEY, "images", i), (8, 1, 6, 6)) for i in range(count)]
    return tuple(Batch(x, torch.arange(8) % 4) for x in images)


def test_a_pruned_personal_model_is_a_smaller_dense_one_with_equal_outputs():
    method = deep()
    own = pruned(method, 0.5)
    state = State(own, {}, ())
    model = method.model(method.init_server(KEY), state)
    graph = method.task.graph
    alive = compaction.alive_channels(graph, masks.nonzero(model, graph.maskable))
    small = compaction.compact(graph, model, alive)
    assert [tuple(w.shape) for w in small.values()] == [(4, 1, 3, 3), (5, 4 * 16), (4, 5)]
    assert all(bool((w != 0).all()) for w in small.values())
    x = normal(fold(KEY, "x"), (7, 1, 6, 6))
    torch.testing.assert_close(
        method.task.predict(small, x), method.task.predict(model, x), rtol=0, atol=1e-6
    )


def assert_alike(compact, masked, own, atol):
    """Over rounds in which masks change the two methods train alike, statistics aside."""
    given = Given(tuple(Batch(b.x.double(), b.y) for b in image_batches(6)), epochs=2)
    ours = theirs = Trained(own, (), {}, 0.0, 0, 0)
    seen = set()
    for number in range(1, 5):
        theirs = masked.train(theirs.own, theirs.moments, given, number, KEY)
        ours = compact.train(ours.own, ours.moments, given, number, KEY)
        assert all(torch.equal(ours.mask[n], m) for n, m in theirs.mask.items())
        seen.add(tuple(int(m.count_nonzero()) for m in theirs.mask.values()))
        pairs = zip((*ours.own, *ours.moments), (*theirs.own, *theirs.moments), strict=True)
        for mine, other in pairs:
            assert mine.keys() == other.keys()
            for name in mine.keys() - masked.task.buffers:
                torch.testing.assert_close(mine[name], other[name], rtol=0, atol=atol)
    assert len(seen) > 1


@pytest.mark.parametrize("preset", ["code", "paper"])
@pytest.mark.parametrize("granularity", ["filter", "element"])
def test_compact_training_equals_the_masked_run(preset, granularity):
    """Behind a ReLU a pruned row has no gradient: rows come and go alike in both runs."""
    options = make({"method": "spafl", "preset": preset}).options
    options |= {"granularity": granularity, "sparsity_weight": 0.05}
    masked, compact = deep(**options), deep(**options, compact_training=True)
    own = Local(*({n: t.double() for n, t in part.items()} for part in pruned(masked, 0.5)))
    assert_alike(compact, masked, own, atol=1e-14)


def test_compact_training_runs_the_forward_pass_on_smaller_tensors():
    method = deep(compact_training=True)
    own = pruned(method, 0.5)
    kept = method.rule.settled(*own)[1]
    small, _ = method._effective(own, kept)
    assert [tuple(w.shape) for w in small.values()] == [(4, 1, 3, 3), (5, 4 * 16), (4, 5)]


def normed(**options):
    def model():
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * 36, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU(),
            nn.Linear(10, 4, bias=False),
        )  # fmt: skip

    task = ModelTask(model, "classes", (1, 6, 6))
    return SpaFL(task=task, **CODE | options | {"lr": 0.1})


@pytest.mark.parametrize("preset", ["code", "paper"])
def test_rows_pruned_with_their_normalisation_are_cut_and_come_back_alike(preset):
    """Statistics alone rest where a channel is cut; training does not read them."""
    options = make({"method": "spafl", "preset": preset}).options
    options |= {"granularity": "filter", "sparsity_weight": 0.02}
    masked, compact = (
        normed(**options, prune_norms=True, compact_training=c) for c in (False, True)
    )
    own = Local(*({n: t.double() for n, t in part.items()} for part in pruned(masked, 0.5)))
    for name in masked.task.graph.norms[0].tensors:
        if name not in masked.task.buffers:
            own.weights[name] += 0.3 * normal(fold(KEY, name), own.weights[name].shape).double()
    assert_alike(compact, masked, own, atol=1e-12)


def test_statistics_of_cut_channels_rest_and_the_others_move_as_without_cutting():
    masked = normed(prune_norms=True)
    own, one = pruned(masked, 0.5), Given(image_batches(1))
    theirs = masked.train(own, (), one, 1, KEY).own.weights
    ours = replace(masked, compact_training=True).train(own, (), one, 1, KEY).own.weights
    kept = masked.rule.settled(*own)[1]["0.weight"].flatten()
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(ours[name][kept], theirs[name][kept], rtol=0, atol=1e-6)
        assert bool((ours[name][kept] != own.weights[name][kept]).all())
        assert torch.equal(ours[name][~kept], own.weights[name][~kept])


def test_a_row_pruned_with_its_normalisation_leaves_a_smaller_network():
    method = normed(prune_norms=True, compact_training=True)
    own = pruned(method, 0.5)
    own.weights["1.bias"].fill_(0.7)
    used, _ = method._effective(own, method.rule.settled(*own)[1])
    assert tuple(used["4.weight"].shape) == (5, 4 * 36)
    assert len(used["1.running_mean"]) == 4
    state = State(own, {}, ())
    model = method.model(method.init_server(KEY), state)
    small = compaction.smallest(method.task, model)
    assert [tuple(small[n].shape) for n in own.thresholds] == [(4, 1, 3, 3), (5, 4 * 36), (4, 5)]
    x = normal(fold(KEY, "x"), (7, 1, 6, 6))
    expected = method.task.predict(model, x)
    torch.testing.assert_close(method.task.predict(small, x), expected, rtol=0, atol=1e-6)
    kept = replace(method, prune_norms=False).model(method.init_server(KEY), state)
    assert (
        len(compaction.smallest(method.task, kept)["0.weight"]) == 8
    )  # shifted channels: none is cut


def test_without_a_preset_single_weights_are_pruned_but_none_of_the_output_layer():
    """Else the released program's rounds: a pruned output is a class that is never predicted."""
    task = deep().task
    method = SpaFL(task=task)
    assert (CODE["granularity"], method.granularity) == ("filter", "element")
    same = ("training", "weight_ste", "clamp", "importance_norm", "importance_scope", "receivers")
    assert all(getattr(method, name) == CODE[name] for name in same)
    assert [x.weight for x in method.masked] == ["0.weight", "3.weight"]
    assert [x.weight for x in SpaFL(task=task, unmasked=()).masked][-1] == "5.weight"
    assert [x.weight for x in SpaFL(task=linear_task()).masked] == [NAME]  # it has no other
    own = method.init_client(0, KEY).own
    assert own.thresholds.keys() == {"0.weight", "3.weight"}
    high = Local(own.weights, {n: torch.full_like(t, 9.0) for n, t in own.thresholds.items()})
    model = replace(method, reset_density=0.0).pruned(high)
    assert not model["0.weight"].any()
    assert not model["3.weight"].any()
    assert torch.equal(model["5.weight"], own.weights["5.weight"])


def test_layers_without_thresholds_are_left_alone():
    task = sizes("lstm", GREY28, 10).task
    method = SpaFL(task=task, unmasked=("fc",))
    state = method.init_client(0, KEY)
    assert [len(t) for t in state.own.thresholds.values()] == [512] * 4
    high = {n: torch.full_like(t, 9.0) for n, t in state.own.thresholds.items()}
    model = replace(method, reset_density=0.0).model(
        method.init_server(KEY), state._replace(own=state.own._replace(thresholds=high))
    )
    assert not any(model[n].any() for n in high)
    assert torch.equal(model["fc.weight"], state.own.weights["fc.weight"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"sparsity_weight": -1.0}, "sparsity_weight=-1.0"),
        ({"reset_density": 1.0}, "reset_density=1.0"),
        ({"reg_warmup": 0.0}, "reg_warmup=0.0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"unmasked": ("fc",)}, "unknown spafl: unmasked layer 'fc'"),
        ({"unmasked": ("0",)}, "leaves no thresholds.*local_only"),
    ],
)
def test_values_that_cannot_work_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        one_layer(**options)
