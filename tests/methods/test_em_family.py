"""Closed forms of the EM family (specification fedsparse, sections 1, 6 and 10)."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.message import paper_bytes
from fedsieve.core.method import Batch, Round
from fedsieve.methods import em, fedavg
from fedsieve.methods.fedmix import FedMix, State
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.optim import local
from small import rounds_of, small_job


def final_weights(tmp_path, **settings):
    job = small_job(**settings)
    rounds = rounds_of(job, tmp_path, eval_every=10**6)
    *_, played = rounds.play(rounds.start())
    return played.position.server


def assert_close(a, b, tolerance=1e-6):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"preset": "paper"}, None), ({"input_scale": "raw255"}, 1.0), ({"clip_norm": 0.05}, 0.05)],
    ids=["paper", "default", "tight"],
)
def test_one_client_and_one_step_of_fedavg_is_one_sgd_step(options, limit, tmp_path):
    """Along the gradient, or as much of it as `clip_norm` leaves."""
    settings = {"clients": 1, "cohort": 1, "rounds": 1, "steps": 1, "partition": "iid"}
    job = small_job(method="fedavg", **settings, **options)
    rounds = rounds_of(job, tmp_path)
    start = rounds.start()
    (played,) = rounds.play(start)
    weights = {n: v.clone().requires_grad_() for n, v in start.server.weights.items()}
    (batch,) = job.federation.batches(0).work(fold(job.config.seed, "client", 1, 0))
    hidden = torch.relu(nn.functional.linear(batch.x.flatten(1), *list(weights.values())[:2]))
    outputs = nn.functional.linear(hidden, *list(weights.values())[2:])
    gradients = torch.autograd.grad(
        nn.functional.cross_entropy(outputs, batch.y), list(weights.values())
    )
    length = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert limit is None or length > limit  # else nothing is clipped
    rate = 0.1 if limit is None else 0.1 * limit / length
    stepped = {
        n: (w - rate * g).detach() for (n, w), g in zip(weights.items(), gradients, strict=True)
    }
    assert_close(played.position.server.weights, stepped)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedavg_takes_the_mean_of_the_replies(weighting):
    job = small_job(method="fedavg", weighting=weighting)
    server = job.method.init_server(fold(0, "init"))
    locals_ = [{n: v + k for n, v in server.weights.items()} for k in (1.0, 2.0, 4.0)]
    replies = [fedavg.Up(w, count) for w, count in zip(locals_, (10, 30, 60), strict=True)]
    mean = job.method.server_update(server, Round(replies), fold(0, "server")).weights
    by_hand = (10 * 1 + 30 * 2 + 60 * 4) / 100 if weighting == "samples" else (1 + 2 + 4) / 3
    assert_close(mean, {n: v + by_hand for n, v in server.weights.items()})


def test_fedprox_without_tie_is_fedavg(tmp_path):
    prox = final_weights(tmp_path / "a", method="fedprox", proximal=0.0)
    plain = final_weights(tmp_path / "b", method="fedavg")
    assert tree.equal(prox.weights, plain.weights)


def test_the_first_proximal_step_ignores_the_prior(tmp_path):
    """Its gradient is 0 at the server's weights."""
    settings = {"rounds": 1, "steps": 1}
    prox = final_weights(tmp_path / "a", method="fedprox", proximal=5.0, **settings)
    plain = final_weights(tmp_path / "b", method="fedavg", **settings)
    assert_close(prox.weights, plain.weights)


def test_a_strong_tie_keeps_clients_near_the_server(tmp_path):
    start = small_job().method.init_server(fold(7, "init")).weights
    moved = [
        float(tree.sq_dist(final_weights(tmp_path / f"{mu}", method="fedprox", proximal=mu,
                                         rounds=1, epochs=5).weights, start))
        for mu in (0.0, 1.0, 5.0)
    ]  # fmt: skip
    assert moved[0] > moved[1] > moved[2]


def test_fedopt_with_sgd_of_rate_one_is_fedavg(tmp_path):
    server = final_weights(tmp_path / "a", method="fedopt", server_optimiser="sgd", server_lr=1.0)
    assert_close(server.weights, final_weights(tmp_path / "b", method="fedavg").weights, 1e-5)


@pytest.mark.parametrize(
    ("spelled", "reference"),
    [
        ("sgd(momentum=0.9)", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1)),
        ("adagrad", lambda p: torch.optim.Adagrad(p, lr=0.1)),
        ("adamax", lambda p: torch.optim.Adamax(p, lr=0.1)),
    ],
)
def test_fedopt_steps_like_torch_on_the_mean_difference(spelled, reference):
    job = small_job(method="fedopt", server_optimiser=spelled, server_lr=0.1)
    server = job.method.init_server(fold(0, "init"))
    weights = {n: v.clone().requires_grad_() for n, v in server.weights.items()}
    optimiser = reference(list(weights.values()))
    for number in range(3):
        shifts = (0.5 * (number + 1), -1.0)
        replies = [fedavg.Up({n: v + s for n, v in server.weights.items()}, 5) for s in shifts]
        for name, value in weights.items():
            value.grad = value.detach() - (server.weights[name] + sum(shifts) / 2)
        optimiser.step()
        server = job.method.server_update(server, Round(replies), fold(0, "server"))
        assert_close(server.weights, {n: w.detach() for n, w in weights.items()}, 1e-5)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_fedmedian_takes_the_coordinate_wise_median(count):
    job = small_job(method="fedmedian", weighting="uniform")
    server = job.method.init_server(fold(0, "init"))
    generator = np.random.default_rng(count)
    locals_ = [
        {n: torch.from_numpy(generator.normal(size=v.shape).astype(np.float32))
         for n, v in server.weights.items()}
        for _ in range(count)
    ]  # fmt: skip
    after = job.method.server_update(
        server, Round([fedavg.Up(w, 1) for w in locals_]), fold(0, "server")
    )
    for name in server.weights:
        expected = np.median(np.stack([w[name].numpy() for w in locals_]), axis=0)
        np.testing.assert_allclose(after.weights[name].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_one_component_mixture_is_fedavg(tmp_path):
    mixed = final_weights(
        tmp_path / "a", method="fedmix", components=1, precision=1e-12, weighting="samples"
    )
    plain = small_job(method="fedavg")
    rounds = rounds_of(plain, tmp_path / "b", eval_every=10**6)
    start = rounds.start()
    common = small_job(method="fedmix", components=1).method.init_server(fold(7, "init"))
    weights = tree.unstack(common.components)[0]
    *_, played = rounds.play(start._replace(server=start.server._replace(weights=weights)))
    assert_close(tree.unstack(mixed.components)[0], played.position.server.weights, 1e-5)


def test_mixture_m_step_follows_the_responsibilities():
    job = small_job(method="fedmix", components=2, precision=0.5, pseudo_count=0.0)
    server = job.method.init_server(fold(0, "init"))
    shares = torch.tensor([0.25, 0.75])
    server = server._replace(shares=shares)
    centres = tree.unstack(server.components)
    size = sum(v.numel() for v in centres[0].values())
    locals_ = [
        {n: v + d / size**0.5 for n, v in centres[k].items()} for k, d in ((0, 1.0), (1, 2.0))
    ]
    after = job.method.server_update(
        server, Round([fedavg.Up(w, 9) for w in locals_]), fold(0, "server")
    )
    joint = np.array([
        [np.log(float(shares[k])) - 0.25 * float(tree.sq_dist(w, centres[k])) for k in (0, 1)]
        for w in locals_
    ])  # fmt: skip
    r = np.exp(joint - joint.max(1, keepdims=True))
    r /= r.sum(1, keepdims=True)
    for k, centre in enumerate(tree.unstack(after.components)):
        expected = {
            n: (r[0, k] * locals_[0][n] + r[1, k] * locals_[1][n]) / r[:, k].sum() for n in centre
        }
        assert_close(centre, {n: v.float() for n, v in expected.items()}, 1e-5)
    np.testing.assert_allclose(after.shares.numpy(), r.mean(0), rtol=1e-5)


class Zeros:
    """A client whose inputs are 0 and labels 0, so that biases alone decide its loss."""

    def __init__(self, *sizes):
        self._sizes, self.examples = sizes, sum(sizes)

    def work(self, key):
        return self.ordered()

    def ordered(self):
        return (Batch(torch.zeros(n, 3), torch.zeros(n, dtype=torch.long)) for n in self._sizes)


@pytest.mark.parametrize(("sizes", "nearest"), [((4, 1), 0), ((7, 3), 1)])
def test_a_client_of_a_mixture_starts_from_the_centre_that_explains_its_data(
    sizes, nearest, monkeypatch
):
    """Losses log 2 and log(1 + 1/e) an example, shares 0.9 and 0.1: six examples turn the scale."""
    task = ModelTask(lambda: nn.Sequential(nn.Linear(3, 2)), "classes", (3,))
    method = FedMix(task=task, components=2, lr=0.25)
    server = method.init_server(fold(0, "init"))
    biases = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    server = server._replace(
        components=server.components | {"0.bias": biases}, shares=torch.tensor([0.9, 0.1])
    )
    gain = sum(sizes) * (np.log(2) - np.log(1 + np.exp(-1)))
    assert (gain > np.log(0.9 / 0.1)) == bool(nearest)
    centres = tree.unstack(server.components)

    def untrained(centre, start, *_, lr, **options):
        assert tree.equal(start, centres[nearest])
        assert lr == 0.25
        assert centre.examples == sum(sizes)
        assert all(tree.equal(a, b) for a, b in zip(centre.centres, centres, strict=True))
        torch.testing.assert_close(centre.log_shares.exp(), server.shares)
        return local.Trained(start, (), 0.0, 0, 0)

    monkeypatch.setattr(em, "objective", lambda task, prior, centre: centre)
    monkeypatch.setattr(local, "train", untrained)
    down = method.broadcast(server, fold(0, "b"))
    up, state, _ = method.client_update(down, State(0), Zeros(*sizes), fold(0, "c"))
    assert tree.equal(up.weights, centres[nearest])
    assert (up.examples, state.component) == (sum(sizes), nearest)


def test_mixture_components_start_apart_and_predict_as_their_ensemble():
    job = small_job(method="fedmix", components=3)
    server = job.method.init_server(fold(0, "init"))
    first, second, third = tree.unstack(server.components)
    assert not tree.equal(first, second)
    assert not tree.equal(second, third)
    x = next(job.federation.batches(0).ordered()).x
    mixed = job.method.predict(job.method.model(server, ()), x).exp()
    single = [job.method.task.predict(c, x).softmax(-1) for c in (first, second, third)]
    torch.testing.assert_close(mixed, sum(single) / 3)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(len(x)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.fc(x))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedopt", "fedmedian"])
def test_statistics_of_norm_layers_are_averaged_by_every_prior(name):
    cls = type(small_job(method=name).method)
    method = cls(task=ModelTask(Normed, "classes", (6,)))
    server = method.init_server(fold(0, "init"))
    replies = []
    for count, value in ((1, 3.0), (3, 7.0)):
        weights = {n: v.clone() for n, v in server.weights.items()}
        weights["norm.running_var"] = torch.full((4,), value)
        replies.append(fedavg.Up(weights, count))
    after = method.server_update(server, Round(replies), fold(0, "server"))
    torch.testing.assert_close(after.weights["norm.running_var"], torch.full((4,), 6.0))
    assert "norm.running_var" not in "".join(getattr(after, "moments", ()))


@pytest.mark.parametrize(
    ("model", "shape", "classes", "rounds", "gib"),
    [
        ("lenet5_wide", (3, 32, 32), 10, 1000, 65.5),
        ("lenet5_wide", (1, 28, 28), 62, 6000, 272.1),
        ("resnet20_gn", (3, 32, 32), 100, 6000, 123.2),
    ],
)
def test_fedavg_totals_of_the_em_paper_follow_from_its_formula(model, shape, classes, rounds, gib):
    task = ModelTask(lambda: read_model(model).build(shape, classes), "classes", shape)
    weights = task.init_params(fold(0, "init"))
    down, up = fedavg.Down(weights, 0), fedavg.Up(weights, 0)
    total = rounds * 10 * (paper_bytes(down) + paper_bytes(up))
    assert round(total / 2**30, 1) == gib
