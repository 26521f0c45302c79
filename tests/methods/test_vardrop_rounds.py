"""Variational dropout over rounds against a plain program.

It is written from specification variational_dropout, sections 2 to 5: it keeps weights,
log-variances and Adam's moments of all devices in dicts and knows no messages; after every step it
averages what devices would send. It shares the addresses of randomness with the method, no
arithmetic.
"""

import pytest
import torch
from torch.nn import functional

from fedsieve.core.keys import fold, normal
from small import SETTINGS, rounds_of, small_job

DEVICES, ROUNDS = 3, 9
LAYERS = ("fc1", "fc2")
WEIGHTS = tuple(f"{layer}.weight" for layer in LAYERS)


class Adam:
    """Moments of named tensors, and steps along gradients."""

    def __init__(self):
        self.first, self.second, self.steps = {}, {}, 0

    def step(self, params, grads, lr, present=None):
        self.steps += 1
        moved = dict(params)
        for name, grad in grads.items():
            first = 0.9 * self.first.get(name, 0 * grad) + 0.1 * grad
            second = 0.999 * self.second.get(name, 0 * grad) + 0.001 * grad**2
            corrected = first / (1 - 0.9**self.steps)
            root = (second / (1 - 0.999**self.steps)).sqrt() + 1e-4
            kept = present[name] if present and name in present else torch.ones_like(grad)
            moved[name] = torch.where(kept > 0, params[name] - lr * corrected / root, params[name])
            self.first[name], self.second[name] = first * kept, second * kept
        return moved


def log_alpha(weight, log_variance):
    return (log_variance - 2 * torch.log(weight.abs() + 1e-8)).clamp(-10, 10)


def divergence(weight, log_variance):
    at = log_alpha(weight, log_variance)
    gate = torch.sigmoid(1.8732 + 1.48695 * at)
    return (0.63576 - 0.63576 * gate + 0.5 * torch.log1p(torch.exp(-at))).sum()


def outputs(theta, own, x, key, used):
    for layer in LAYERS:
        name = f"{layer}.weight"
        kept = used.get(name, 1)
        mean = x @ (theta[name] * kept).T + theta[f"{layer}.bias"]
        if own:
            variance = (x * x) @ (own[name].exp() * kept).T
            mean = mean + (variance + 1e-8).sqrt() * normal(fold(key, "noise", name), mean.shape)
        x = torch.relu(mean) if layer == LAYERS[0] else mean
    return x


def reference(job):
    """Weights, log-variances of each device, and the masks they sent last."""
    o, seed = job.config.options, SETTINGS["seed"]
    start = job.method.init_client(0, fold(seed, "init")).model.posterior
    theta, own = dict(start.weights), [dict(start.log_variance) for _ in range(DEVICES)]
    weight_adam, variance_adams, shared_adam = Adam(), [Adam() for _ in range(DEVICES)], Adam()
    data = [job.federation.batches(client) for client in range(DEVICES)]
    examples, mean, union = 0, {}, {}

    def factor(done):
        return 1 - 0.9 * done / ROUNDS

    for done in range(ROUNDS):
        if mean:
            mine = {n: g for n, g in mean.items() if not n.startswith("lv/")}
            theta = weight_adam.step(theta, mine, o["lr"] * factor(done - 1), union)
            common = {n[3:]: g for n, g in mean.items() if n.startswith("lv/")}
            if common:
                rate = o["variance_lr"] * factor(done - 1)
                moved = shared_adam.step(own[0], common, rate, union)
                own = [dict(moved) for _ in own]
        if done == o["warmup"]:
            weight_adam = Adam()
        is_dense = done < o["warmup"]
        kappa = o["kl_weight"] * min((done - o["warmup"]) / o["ramp"], 1)
        sent, masks = [], []
        for client in range(DEVICES):
            key = fold(seed, "client", done + 1, client)
            batch = data[client].draw(fold(key, "batch", 0))
            mask = {
                n: torch.ones_like(theta[n])
                if is_dense
                else (log_alpha(theta[n], own[client][n]) <= o["log_threshold"]).float()
                for n in WEIGHTS
            }
            leaves = {n: w.clone().requires_grad_() for n, w in theta.items()}
            variances = {n: lv.clone().requires_grad_() for n, lv in own[client].items()}
            noisy = {} if is_dense else variances
            used = mask if o["clip_training"] else {}
            answers = outputs(leaves, noisy, batch.x.flatten(1), key, used)
            loss = functional.cross_entropy(answers, batch.y)
            if examples and not is_dense:
                total = sum(divergence(leaves[n], variances[n]) for n in WEIGHTS)
                loss = loss + kappa / examples * total
            loss.backward()
            grads = {n: leaf.grad * mask.get(n, 1) for n, leaf in leaves.items()}
            slopes = {} if is_dense else {n: lv.grad for n, lv in variances.items()}
            if o["share_alpha"]:
                grads |= {f"lv/{n}": g * mask[n] for n, g in slopes.items()}
            elif slopes:  # not masked: a weight may come back
                rate = o["variance_lr"] * factor(done)
                own[client] = variance_adams[client].step(own[client], slopes, rate)
            sent.append(grads)
            masks.append(mask)
        mean = {n: sum(grads[n] for grads in sent) / DEVICES for n in sent[0]}
        union = {n: torch.stack([mask[n] for mask in masks]).amax(0) for n in WEIGHTS}
        examples = sum(batches.examples for batches in data)
    return theta, own, masks


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"warmup": 3},
        {"share_alpha": True, "warmup": 2},
        {"clip_training": True},
    ],
    ids=str,
)
def test_devices_are_those_of_a_plain_program(options, tmp_path):
    shared = {
        "method": "vardrop", "preset": "paper", "partition": "iid", "clients": DEVICES,
        "rounds": ROUNDS, "lr": 0.01,
        "variance_lr": 0.2, "log_variance": -5.0, "log_threshold": 1.0, "ramp": 4,
        "kl_weight": 50.0, "optimiser": "adam(eps=1e-4)", "variance_optimiser": "adam(eps=1e-4)",
        "schedule": f"linear(until={ROUNDS}, floor=0.1)",
    }  # fmt: skip
    job = small_job(**shared | options)
    rounds = rounds_of(job, tmp_path)
    played = list(rounds.play(rounds.start()))
    theta, own, masks = reference(job)
    server = played[-1].position.server
    for client in range(DEVICES):
        posterior = rounds.stores.states.get(client).model.posterior
        for name in WEIGHTS:
            torch.testing.assert_close(posterior.weights[name], theta[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                posterior.log_variance[name], own[client][name], rtol=1e-4, atol=1e-4
            )
    votes = {n: sum(mask[n] for mask in masks) for n in WEIGHTS}
    for name in WEIGHTS:
        assert torch.equal(server.kept[name], 2 * votes[name] > DEVICES)
        assert 0 < server.kept[name].float().mean() < 0.9
    before, last = played[-2], played[-1]
    union = sum(int(m.sum()) for m in before.position.server.parcel.mask.values())
    biases = sum(theta[f"{layer}.bias"].numel() for layer in LAYERS)
    values = union * (2 if job.method.share_alpha else 1) + biases
    assert last.row.down_paper_bytes == DEVICES * 4 * values
