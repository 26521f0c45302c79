"""SpaFL over rounds against a federation in which everybody is simply told everything.

The reference keeps all clients' weights and thresholds in lists. After each mean, whoever is to
have it takes it over and follows its change at once; nothing is remembered, missed or caught up.
Local steps are the method's own: they have tests of their own.
"""

import pytest
import torch

from fedsieve.core.keys import fold
from fedsieve.methods.spafl import Local, SpaFL
from fedsieve.sparsity import masks
from small import SETTINGS, rounds_of, small_job

CLIENTS = 6


def _followed(method, weights, change):
    """Weights w - sign(sum w) Delta / nu for every masked row (specification spafl, section 5)."""
    moved = dict(weights)
    for layer in method.masked:
        w = weights[layer.weight]
        first = w[0, 0] if method.importance_norm == "kernel" and w.dim() == 4 else w[0]
        step = w.flatten(1).sum(1).sign() * change[layer.weight] / first.numel()
        moved[layer.weight] = w - step.view(-1, *[1] * (w.dim() - 1))
    return moved


def _reference(job, cohorts):
    """Weights and thresholds of all clients when the given cohorts have trained in turn."""
    method, key = job.method, fold(SETTINGS["seed"], "init")
    start = method.init_client(0, key).own
    weights = [dict(start.weights) for _ in range(CLIENTS)]
    thresholds = [dict(start.thresholds) for _ in range(CLIENTS)]
    moments = [()] * CLIENTS
    common, change = dict(start.thresholds), {n: 0 * t for n, t in start.thresholds.items()}
    norms = dict(method.init_server(key).norms)
    for done, cohort in enumerate(cohorts):
        sent, sent_norms = [], []
        for client in cohort:
            thresholds[client] = dict(common)
            weights[client] |= norms
            if method.importance and method.importance_scope == "sampled":
                weights[client] = _followed(method, weights[client], change)
            trained = method.train(
                Local(weights[client], thresholds[client]),
                moments[client],
                job.federation.batches(client),
                done,
                fold(SETTINGS["seed"], "client", done + 1, client),
            )
            weights[client] = dict(trained.own.weights)
            thresholds[client] = method.rule.settled(*trained.own)[0]
            moments[client] = trained.moments if method.persist_momentum else ()
            sent.append(trained.own.thresholds)
            sent_norms.append({n: trained.own.weights[n] for n in norms})
        mean = {n: sum(s[n] for s in sent) / len(sent) for n in common}
        norms = {n: sum(s[n] for s in sent_norms) / len(sent) for n in norms}
        change, common = {n: mean[n] - common[n] for n in mean}, mean
        if method.importance and method.importance_scope == "all":
            weights = [_followed(method, own, change) for own in weights]
        if method.receivers == "all":
            thresholds = [dict(common) for _ in thresholds]
            weights = [own | norms for own in weights]
    return weights, thresholds


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "code"},
        {"preset": "paper"},
        {"preset": "code_cifar10", "model": "conv_small"},
        {"preset": "paper", "importance_scope": "sampled"},
        {"preset": "paper", "receivers": "sampled", "importance": False},
        {"preset": "code", "model": "resnet8", "communicate_norm": True, "batch_size": 100},
        {"preset": "paper", "model": "resnet8", "communicate_norm": True, "batch_size": 100},
    ],
    ids=str,
)
def test_personal_models_are_those_of_clients_told_everything(options, tmp_path):
    shared = {"clients": CLIENTS, "cohort": 2, "rounds": 5, "epochs": 2, "sparsity_weight": 0.05}
    job = small_job(**{"method": "spafl", **shared, **options})
    method = job.method
    rounds = rounds_of(job, tmp_path)
    played = list(rounds.play(rounds.start()))
    cohorts = [sorted(m.client for m in p.messages if m.direction == "up") for p in played]
    drawn = {client for cohort in cohorts for client in cohort}
    assert 2 < len(drawn) < CLIENTS  # some missed rounds, and somebody all of them
    weights, thresholds = _reference(job, cohorts)
    server = played[-1].position.server
    assert bool(server.norms) == method.communicate_norm
    for client, (own, tau) in enumerate(zip(weights, thresholds, strict=True)):
        ours = method.model(server, rounds.stores.states.get(client))
        theirs = masks.apply(own, method.rule.settled(own, tau)[1])
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6, msg=name)


def test_presets_of_the_program_s_other_trees_are_as_released():
    """Specification spafl, sections 3, 4 and 5: what CODE does on CIFAR."""
    ten, hundred = SpaFL.presets["code_cifar10"], SpaFL.presets["code_cifar100"]
    for preset in (ten, hundred):
        assert (preset["ste"], preset["importance_scope"]) == ("inverted", "all")
        assert (preset["receivers"], preset["persist_momentum"]) == ("sampled", False)
    assert (ten["clip_norm"], ten["reg_warmup"]) == (3.0, None)
    assert (hundred["clip_norm"], hundred["reg_warmup"]) == (15.0, 1.0)
