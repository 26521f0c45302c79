"""FedPM: frozen weights follow from a seed, clients vote on them, the server counts votes."""

import math

import pytest
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.message import fields
from fedsieve.core.method import Round
from fedsieve.methods.fedpm import Down, FedPM, Server, State, Up, _divergence
from fedsieve.optim import local
from fedsieve.wire.codec import encode
from small import small_job

WEIGHT = "fc1.weight"


def job_of(**settings):
    return small_job(**{"method": "fedpm", "model": "mlp(hidden=[12])", **settings})


def started(job):
    return job.method.init_server(fold(0, "init"))


def with_theta(server, value):
    return server._replace(theta={n: torch.full_like(t, value) for n, t in server.theta.items()})


def reply(job, server, client=0):
    down = job.method.broadcast(server, fold(0, "broadcast"))
    data = job.federation.batches(client)
    return job.method.client_update(down, State(()), data, fold(0, "client", client))


def counted(method, rounds):
    """Theta of four weights after rounds of votes, each a list of masks."""
    zeros = {"w": torch.zeros(4)}
    server = Server({"w": torch.full((4,), 0.5)}, zeros, 0.0, {}, 1, 0)
    for votes in rounds:
        masks = [{"w": torch.tensor(vote, dtype=torch.bool)} for vote in votes]
        replies = [Up({}, m, {}) if method.votes == "drawn" else Up(m, {}, {}) for m in masks]
        server = method.server_update(server, Round(replies), fold(0, "server"))
    return [round(t, 6) for t in server.theta["w"].tolist()]


FIRST = [[1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]  # means 1, 1/4, 0, 3/4
SECOND = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 0]]  # means 0, 1/2, 1, 3/4
PAPER = {"forget": 1.0, "forget_schedule": "constant"}


def test_theta_is_the_share_of_votes_kept_away_from_0_and_1():
    assert counted(job_of(**PAPER).method, [FIRST]) == [0.99, 0.25, 0.01, 0.75]


def test_drawn_votes_count_like_coded_ones():
    method = job_of(**PAPER, votes="drawn").method
    assert counted(method, [FIRST]) == [0.99, 0.25, 0.01, 0.75]


def test_with_drawn_votes_a_client_sends_its_probabilities_and_no_mask():
    job = job_of(votes="drawn")
    drawn, _, _ = reply(job, started(job))
    coded, _, _ = reply(job_of(), started(job))
    assert not drawn.mask
    assert not coded.odds
    assert drawn.odds.keys() == coded.mask.keys()
    expected = sum(odds.sum() for odds in drawn.odds.values())  # as many bits, but for noise
    ones = sum(mask.sum() for mask in coded.mask.values())
    assert abs(ones - expected) < 4 * math.sqrt(sum(m.numel() for m in coded.mask.values())) / 2


def test_divergence_is_that_of_the_clients_probabilities_from_theta():
    """KL(3/4 || 1/2) = 1 - H(1/4) = 0.1887 bits; of a theta rounded to 0, that from the floor."""
    half, quarter = {"w": torch.tensor([0.5, 0.5])}, {"w": torch.tensor([0.25, 0.75])}
    assert _divergence(half, half) == 0
    assert _divergence(quarter, half) == pytest.approx(0.18872, abs=1e-5)
    job = job_of()
    _, _, metrics = reply(job, with_theta(started(job), 0.0))
    assert math.isfinite(metrics.values["divergence"])


def test_a_reset_posterior_forgets_the_round_before():
    assert counted(job_of(**PAPER).method, [FIRST, SECOND]) == [0.01, 0.5, 0.99, 0.75]


def test_between_resets_votes_add_up():
    method = job_of(**PAPER, reset_every=2).method
    assert counted(method, [FIRST, SECOND]) == [0.5, 0.375, 0.5, 0.75]
    assert counted(method, [FIRST, SECOND, FIRST]) == [0.99, 0.25, 0.01, 0.75]


def test_half_forgotten_votes_count_half():
    method = job_of(forget=0.5, forget_schedule="constant").method
    # (4/2 + 0) / 6, (1/2 + 2) / 6, (0 + 4) / 6, (3/2 + 3) / 6
    assert counted(method, [FIRST, SECOND]) == [0.333333, 0.416667, 0.666667, 0.75]


@pytest.mark.filterwarnings("ignore:fedpm")
def test_the_published_program_lifts_the_mean_of_bits():
    method = job_of(preset="code").method
    assert counted(method, [FIRST]) == [0.99, 0.255, 0.01, 0.745]  # 0.01 + 0.98 mean


@pytest.mark.parametrize(("slope", "share"), [("one", 1.0), ("p", 0.25)])
@pytest.mark.filterwarnings("ignore:fedpm")
def test_a_drawn_bit_has_the_slope_of_its_probability(slope, share):
    method = job_of(training="sample", slope=slope).method
    score = torch.full((1000,), math.log(1 / 3), requires_grad=True)  # p = 1/4
    gate = method._gate(score, fold(0, "gate"))
    assert set(gate.tolist()) == {0.0, 1.0}
    assert gate.mean().item() == pytest.approx(0.25, abs=4 * math.sqrt(0.1875 / 1000))
    gate.sum().backward()
    assert torch.allclose(score.grad, torch.tensor(share * 0.25 * 0.75))


def test_frozen_weights_are_signed_constants_of_the_fan_in():
    method = job_of(gain=2.0).method
    frozen = method._frozen(5)
    assert frozen[WEIGHT].abs().unique().tolist() == [pytest.approx(2 / 8)]  # 64 pixels
    assert frozen["fc1.bias"].abs().unique().tolist() == [pytest.approx(2 / 8)]
    assert 0.4 < (frozen[WEIGHT] > 0).float().mean() < 0.6
    assert torch.equal(frozen[WEIGHT], method._frozen(5)[WEIGHT])
    assert not torch.equal(frozen[WEIGHT], method._frozen(6)[WEIGHT])


@pytest.mark.parametrize(("weights", "largest"), [("uniform", math.sqrt(3)), ("normal", 6.0)])
def test_other_laws_have_the_same_deviation(weights, largest):
    frozen = job_of(gain=8.0, weights=weights).method._frozen(5)[WEIGHT]  # gain / root of 64 = 1
    assert frozen.std().item() == pytest.approx(1, abs=0.1)  # 768 draws
    assert frozen.abs().max() < largest


def test_weights_never_travel():
    job = job_of()
    up, *_ = reply(job, started(job))
    assert [f.name for f in fields(Down)] == ["theta", "unmasked", "seed", "rounds"]
    assert up.unmasked == {}
    payload = encode(up)
    assert payload.mask_bytes <= sum(m.numel() for m in up.mask.values()) / 8 + 16
    assert payload.value_bytes == 0


def test_votes_have_the_probabilities_of_theta_where_nothing_is_learnt():
    job = job_of(lr=1e-9, optimiser="sgd")
    up, *_ = reply(job, with_theta(started(job), 0.2))
    bits = torch.cat([m.reshape(-1) for m in up.mask.values()]).float()
    assert bits.mean().item() == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / len(bits)))


def test_scores_descend_the_loss_of_expected_weights():
    """A huge step keeps just the weights whose growth would have lowered the loss."""
    job = job_of(lr=900.0, optimiser="sgd", steps=1, schedule="constant")
    method, server = job.method, with_theta(started(job), 0.5)
    frozen = method._frozen(server.seed)
    key = fold(0, "client", 0)
    batch = next(iter(job.federation.batches(0).work(key)))
    half = {n: 0.5 * w for n, w in frozen.items()}
    slopes, _ = local.gradient(method.task.loss, half, batch, key=fold(key, 1))
    up, *_ = reply(job, server)
    seen = 0
    for name, slope in slopes.items():
        by_score = slope * frozen[name] / 4  # sigmoid'(0) = 1/4
        clear = by_score.abs() > 0.01  # moves a score by more than 9: once in 8,000 the other way
        assert torch.equal(up.mask[name][clear], by_score[clear] < 0)
        seen += int(clear.sum())
    assert seen > 10


def test_the_model_has_expected_kept_or_drawn_weights():
    job = job_of()
    server = started(job)
    theta = server.theta[WEIGHT]
    frozen = job.method._frozen(server.seed)[WEIGHT]
    models = {
        how: job_of(deployed=how).method.model(server, ())[WEIGHT]
        for how in ("mean", "threshold", "sample")
    }
    assert torch.equal(models["mean"], frozen * theta)
    assert torch.equal(models["threshold"], torch.where(theta > 0.5, frozen, 0))
    drawn = models["sample"] != 0
    assert torch.equal(models["sample"], torch.where(drawn, frozen, 0))
    assert drawn.float().mean().item() == pytest.approx(theta.mean().item(), abs=0.08)


def test_the_paper_counts_the_entropy_of_the_share_of_ones():
    method = job_of().method
    half = Up({"w": torch.arange(1024) < 512}, {}, {"b": torch.zeros(3)})
    assert method.paper_bytes(half) == 12 + 130  # 1024 + 10 bits are 129.25 bytes
    none = Up({"w": torch.zeros(1024, dtype=torch.bool)}, {}, {})
    assert method.paper_bytes(none) == 2  # 10 bits
    down = method.broadcast(started(job_of()), fold(0))
    assert method.paper_bytes(down) == 4 * (64 * 12 + 12 + 12 * 10 + 10)


def test_biases_may_train_beside_the_masks():
    job = job_of(biases="trained")
    server = started(job)
    up, *_ = reply(job, server)
    assert sorted(server.theta) == ["fc1.weight", "fc2.weight"]
    assert sorted(up.unmasked) == ["fc1.bias", "fc2.bias"]
    assert not torch.equal(up.unmasked["fc2.bias"], server.unmasked["fc2.bias"])
    still, *_ = reply(job_of(biases="trained", norms="frozen"), server)
    assert torch.equal(still.unmasked["fc2.bias"], server.unmasked["fc2.bias"])


def test_moments_live_on_only_if_asked_for():
    for keep in (True, False):
        job = job_of(keep_moments=keep)
        _, state, _ = reply(job, started(job))
        assert bool(state.moments) is keep


def test_few_rounds_of_drawn_masks_are_warned_of():
    method = job_of().method
    assert isinstance(method.in_run(30), FedPM)
    with pytest.warns(UserWarning, match="have not settled after 30 rounds"):
        job_of(preset="paper", rounds=30)


@pytest.mark.parametrize(
    "wrong",
    [{"floor": 0}, {"floor": 0.5}, {"forget": 1.5}, {"reset_every": 0}, {"gain": 0}, {"lr": 0}],
)
def test_values_that_cannot_work_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        job_of(**wrong)
