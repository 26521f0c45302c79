"""FLoPS and FLoPS-PA: specification flops, section 14."""

import math

import pytest
import torch

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold, uniform
from fedsieve.core.method import Round, method_class
from fedsieve.methods.flops_pa import Sparse
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.optim.optimisers import ascend
from fedsieve.sparsity import masks
from fedsieve.sparsity.units import Weights
from small import rounds_of, small_job

LINEAR = {"dataset": "synthetic(task=values, rows=200, test_rows=50, features=40, density=0.1)"}


def linear_job(method, **settings):
    shared = {"model": "linear", "partition": "quantity(1.0)", "method": method, "lr": 0.01}
    return paper_job(**LINEAR | shared | settings)


def paper_job(**settings):
    return small_job(preset="paper", **settings)


def random_point(method, seed=3):
    """Weights, and gate logits whose medians lie strictly between 0 and 1."""
    shapes = method.units.shapes(method.task.graph)
    logits = {n: 1.5 * (2 * uniform(fold(seed, n), s) - 1) for n, s in shapes.items()}
    return method.task.init_params(fold(seed, "weights")), logits


@pytest.mark.parametrize("test_gate", ["median", "untempered"])
def test_expanding_what_was_compressed_changes_nothing_if_all_is_kept(test_gate):
    method = paper_job(method="flops_pa", target_density=1.0, test_gate=test_gate).method
    weights, logits = random_point(method)
    model = method._compress(weights, logits, method.largest(weights, logits, method.budget(0)))
    assert all(m.all() for m in model.mask.values())
    again, logits_again = method._expand(model.effective, model.all_gates)
    torch.testing.assert_close(again, weights)
    torch.testing.assert_close(logits_again, logits)


def test_what_is_left_out_of_a_message_is_zero_with_the_mean_gate():
    method = paper_job(method="flops_pa", target_density=0.2).method
    weights, logits = random_point(method)
    model = method._compress(weights, logits, method.largest(weights, logits, method.budget(0)))
    medians = method.test_gates(logits)
    outside = torch.cat([medians[n][~m] for n, m in model.mask.items()])
    assert model.rest == pytest.approx(outside.mean().item())
    again, logits_again = method._expand(model.effective, model.all_gates)
    for name, mask in model.mask.items():
        torch.testing.assert_close(again[name], torch.where(mask, weights[name], 0))
        gates = method.test_gates(logits_again)[name]
        torch.testing.assert_close(gates[mask], medians[name][mask])
        torch.testing.assert_close(gates[~mask], torch.full_like(gates[~mask], model.rest))


def test_a_gate_that_was_sent_as_zero_is_not_taken_for_one_left_out():
    """Section 5: z = zbar off the indices alone, w = 0 where z = 0; rounding may make it so."""
    method = linear_job("flops_pa").method
    model = Sparse(
        {"fc.weight": torch.tensor([[True, True, False]])},
        {"fc.weight": torch.tensor([[0.3, 0.01, 0.0]])},
        {"fc.weight": torch.tensor([[0.5, 0.0, 0.0]])},
        0.25,
    )
    weights, logits = method._expand(model.effective, model.all_gates)
    torch.testing.assert_close(weights["fc.weight"], torch.tensor([[0.6, 0.0, 0.0]]))
    gates = method.test_gates(logits)["fc.weight"]
    torch.testing.assert_close(gates, torch.tensor([[0.5, 0.0, 0.25]]), rtol=0, atol=1e-6)


def test_the_plain_inverse_is_the_logit_of_clamped_gates_times_beta():
    method = paper_job(method="flops_pa", inverse="plain").method
    found = method._invert({"x": torch.tensor([0.0, 0.25, 1.0])})["x"]
    expected = [0.66 * math.log(p / (1 - p)) for p in (0.01, 0.25, 0.99)]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_the_untempered_test_gate_closes_at_the_older_threshold():
    method = paper_job(method="flops", test_gate="untempered").method
    edge = math.log(0.1 / 1.1)  # where sigmoid(a) * 1.2 = 0.1: -2.398
    gates = method.test_gates({"x": torch.tensor([edge - 0.01, edge + 0.01])})["x"]
    assert gates[0] == 0 < gates[1]


@pytest.mark.parametrize("gap", [-0.5, -1e-6, 0.0, 1e-6, 0.5])
def test_the_price_restarts_exactly_where_the_constraint_holds(gap):
    after = ascend(torch.tensor(2.0), torch.tensor(gap), 0.1).item()
    assert after == (pytest.approx(2 + 0.1 * gap) if gap > 0 else 0)


def test_a_client_of_flops_pa_pays_for_density_as_the_price_rises_by_hand():
    """Three steps of the Lagrangian with simultaneous dual ascent, written out."""
    settings = {
        "steps": 3,
        "batch_size": 400,
        "clients": 1,
        "cohort": 1,
        "scale_rate": 0.0,
        "clip_norm": None,
    }
    job = linear_job("flops_pa", dual_lr=50.0, gate_lr=0.3, target_density=0.5, **settings)
    method, data, key = job.method, job.federation.batches(0), fold(1, "client")
    down = method.broadcast(method.init_server(fold(0)), fold(0))
    up, _, _ = method.client_update(down, (), data, key)
    start = method.init_server(fold(0)).model
    weights, logits = method._expand(start.effective, start.all_gates)
    w, a, price = weights["fc.weight"], logits["fc.weight"], 0.0
    for step, batch in enumerate(data.work(key), 1):
        w, a = w.clone().requires_grad_(), a.clone().requires_grad_()
        noise = uniform(fold(fold(key, step), "gate", "fc.weight"), a.shape)
        s = torch.sigmoid((torch.logit(noise) + a) / 0.66)
        loss = ((batch.x @ (w * (1.2 * s - 0.1).clamp(0, 1)).T)[:, 0] - batch.y).square().mean()
        gap = torch.sigmoid(a - 0.66 * math.log(0.1 / 1.1)).mean() - 0.5
        (loss + price * gap).backward()
        price = max(0.0, price + 50 * gap.item()) if gap > 0 else 0.0
        w, a = (w - 0.01 * w.grad).detach(), (a - 0.3 * a.grad).detach().clamp(-10, 10)
    assert price > 0
    effective = w * (1.2 * torch.sigmoid(a / 0.66) - 0.1).clamp(0, 1)
    kept = up.mask["fc.weight"]
    torch.testing.assert_close(up.effective["fc.weight"][kept], effective[kept])


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_additive_scaling_leaves_exactly_m_open_gates_when_it_should(rate):
    """A gate at logit a0 closes after ceil((a0 + shift) / r) steps, and not before."""
    method = paper_job(method="flops", target_density=0.1, scale_rate=rate).method
    weights = method.task.init_params(fold(1))
    logits = {n: torch.full(s, 1.0) for n, s in method.units.shapes(method.task.graph).items()}
    kept = method.units.choose(method.task.graph, weights, method.budget(0))
    steps = math.ceil((1.0 + method.gate.shift) / rate)
    size = sum(a.numel() for a in logits.values())
    for step in range(1, steps + 1):
        logits = method.scale(logits, kept)
        is_open = {n: g > 0 for n, g in method.test_gates(logits).items()}
        expected = math.floor(0.1 * size) if step == steps else size
        assert sum(int(o.count_nonzero()) for o in is_open.values()) == expected
    assert all(torch.equal(is_open[n], kept[n]) for n in kept)


def test_the_literal_scaling_rule_never_closes_an_open_gate():
    method = paper_job(
        method="flops", target_density=0.1, scaling="multiplicative", scale_rate=0.1
    ).method
    weights = method.task.init_params(fold(1))
    logits = {n: torch.full(s, 1.0) for n, s in method.units.shapes(method.task.graph).items()}
    kept = method.units.choose(method.task.graph, weights, method.budget(0))
    for _ in range(200):
        logits = method.scale(logits, kept)
    assert all((g >= 0.5).all() for g in method.test_gates(logits).values())


@pytest.mark.parametrize(("schedule", "last"), [("constant", 1.0), ("linear(until=6)", 0.0)])
def test_flops_with_one_client_is_central_training(schedule, last, tmp_path):
    """Gradient steps on the pooled data with the server's dual, written out with autograd."""
    settings = {"clients": 1, "cohort": 1, "rounds": 6, "hold": 2, "scale_from": 2}
    job = linear_job(
        "flops", batch_size=200, gate_lr=0.4, dual_lr=30.0, target_density=0.1, schedule=schedule,
        **settings,
    )  # fmt: skip
    rounds = rounds_of(job, tmp_path)
    *_, played = rounds.play(rounds.start())
    server, method = job.method.init_server(fold(7, "init")), job.method
    w, a, price = server.weights["fc.weight"], server.gate_logits["fc.weight"], 0.0
    for number in range(1, 7):
        key = fold(7, "client", number, 0)
        batch = job.federation.batches(0).draw(fold(key, "batch"))
        w, a = w.clone().requires_grad_(), a.clone().requires_grad_()
        noise = uniform(fold(fold(key, 1), "gate", "fc.weight"), a.shape)
        z = (1.2 * torch.sigmoid((torch.logit(noise) + a) / 0.66) - 0.1).clamp(0, 1)
        loss = ((batch.x @ (w * z).T)[:, 0] - batch.y).square().mean()
        gap = torch.sigmoid(a + method.gate.shift).mean() - 0.1
        (loss + price * gap).backward()
        price = price + 30 * gap.item() if gap > 0 else 0.0
        factor = 1 + (last - 1) * (number - 1) / 6
        w = (w - 0.01 * factor * w.grad).detach()
        a = (a - 0.4 * factor * a.grad).detach().clamp(-10, 10)
        if number % 2 == 0 and number // 2 >= 2:
            size = (w * (1.2 * torch.sigmoid(a / 0.66) - 0.1).clamp(0, 1)).abs()
            kept = size >= size.flatten().topk(4).values[-1]
            a = (a + torch.where(kept, 0.3, -0.3)).clamp(-10, 10)
    assert price > 0
    after = played.position.server
    torch.testing.assert_close(after.weights["fc.weight"], w)
    torch.testing.assert_close(after.gate_logits["fc.weight"], a, rtol=1e-5, atol=1e-5)
    assert after.dual.item() == pytest.approx(price, rel=1e-5)


def test_flops_with_local_steps_is_plain_training_of_weights_and_gates(tmp_path):
    """One client, no price of density, no scaling: three clipped steps a round, written out."""
    settings = {"clients": 1, "cohort": 1, "rounds": 2, "steps": 3, "batch_size": 50}
    job = small_job(
        **LINEAR, model="linear", partition="iid", method="flops", **settings, lr=0.2, gate_lr=0.4,
        clip_norm=0.5, dual_lr=0.0, scale_from=3, target_density=0.1,
    )  # fmt: skip
    rounds = rounds_of(job, tmp_path)
    *_, last = rounds.play(rounds.start())
    start = job.method.init_server(fold(7, "init"))
    w, a, lengths = start.weights["fc.weight"], start.gate_logits["fc.weight"], []
    for number, factor in ((1, 1.0), (2, 0.02 + 0.98 / 2)):  # half a cosine in two rounds
        key = fold(7, "client", number, 0)
        for step, batch in enumerate(job.federation.batches(0).work(key), 1):
            w, a = w.clone().requires_grad_(), a.clone().requires_grad_()
            noise = uniform(fold(fold(key, step), "gate", "fc.weight"), a.shape)
            z = (1.2 * torch.sigmoid((torch.logit(noise) + a) / 0.66) - 0.1).clamp(0, 1)
            ((batch.x @ (w * z).T)[:, 0] - batch.y).square().mean().backward()
            lengths.append(w.grad.norm().item())
            clipped = w.grad * min(1.0, 0.5 / lengths[-1])
            w, a = (w - 0.2 * factor * clipped).detach(), (a - 0.4 * factor * a.grad).detach()
    assert len(lengths) == 6
    assert max(lengths) > 0.5
    after = last.position.server
    torch.testing.assert_close(after.weights["fc.weight"], w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after.gate_logits["fc.weight"], a, rtol=1e-4, atol=1e-5)


def test_flops_holds_its_cohort_for_n_steps(tmp_path):
    job = linear_job("flops", hold=3, rounds=7, cohort=2, clients=20)
    rounds = rounds_of(job, tmp_path)
    cohorts = [{m.client for m in played.messages} for played in rounds.play(rounds.start())]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert cohorts[3] == cohorts[4] == cohorts[5]
    assert len({frozenset(c) for c in cohorts}) > 1


def test_messages_have_the_sizes_of_the_paper(tmp_path):
    """FLoPS 2*4P a step each way; FLoPS-PA 4*2*rho*P, without the indices."""
    for method, expected in (("flops", 2 * 4 * 40), ("flops_pa", 4 * 2 * 4)):
        job = linear_job(method, target_density=0.1, rounds=2, cohort=2)
        rounds = rounds_of(job, tmp_path / method)
        for played in rounds.play(rounds.start()):
            assert {m.paper_bytes for m in played.messages} == {expected}


def test_messages_of_the_papers_cnn_count_its_biases_too():
    """Section 7 with P = 44426: biases have gates like weights (section 10)."""
    shape = (1, 28, 28)
    task = ModelTask(lambda: read_model("lenet5").build(shape, 10), "classes", shape)
    for name, expected in (("flops", 2 * 4 * 44426), ("flops_pa", 4 * 2 * 2221)):
        method = method_class(name)(
            task=task, target_density=0.05, ramp=0, units=Weights(biases=True)
        )
        down = method.broadcast(method.init_server(fold(0)), fold(0))
        assert method.paper_bytes(down) == expected


GATED = {"dataset": "digits", "model": "mlp(hidden=[12])", "rounds": 3, "clients": 4}
GATED_SIZE, GATED_BIASES = 64 * 12 + 12 * 10, 12 + 10


@pytest.mark.parametrize(
    "method", ["flops", "flops_pa", "flops_pa_central", "fediter_ht", "fedht", "fedavg_prune"]
)
def test_the_density_asked_for_is_that_of_weights_and_biases(method):
    own = {} if method.startswith("flops") else {"units": "weights(biases=true)"}
    result = fedsieve.run(
        preset="paper", method=method, target_density=0.07, lr=0.05, **GATED, **own
    )
    kept = sum(int(w.count_nonzero()) for w in result.model.values())
    assert kept == math.floor(0.07 * (GATED_SIZE + GATED_BIASES))


@pytest.mark.parametrize("method", ["flops", "flops_pa", "flops_pa_central", "fedavg_prune"])
def test_without_gates_of_biases_the_density_of_weights_is_exact_in_every_round(method):
    own = {} if method == "fedavg_prune" else {"units": "weights(biases=false)"}
    result = fedsieve.run(
        preset="paper", method=method, target_density=0.07, lr=0.05, **GATED, **own
    )
    expected = math.floor(0.07 * GATED_SIZE) / GATED_SIZE
    assert [row.density for row in result.rows] == [expected] * 3


def test_a_density_below_what_closed_gates_leave_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="logit_limit"):
        paper_job(method="flops", target_density=0.04, logit_limit=math.log(100))
    paper_job(method="flops", target_density=0.04, logit_limit=10)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "flops_pa"},
        {"method": "fediter_ht", "start": "level", "units": "weights(biases=true)"},
    ],
    ids=lambda options: options["method"],
)
def test_a_sparse_start_leaves_out_no_layer_and_has_the_norms_of_a_dense_one(options):
    job = paper_job(model="mlp(hidden=[100, 10])", target_density=0.05, **options)
    server = job.method.init_server(fold(0))
    found = job.method.model(server, ())
    dense = job.method.task.init_params(fold(fold(0), "weights"))
    assert (
        sum(int(w.count_nonzero()) for w in found.values())
        == job.method.units.size(job.method.task.graph) * 5 // 100
    )
    for layer in job.method.task.graph.layers:
        name = layer.weight
        assert found[name].count_nonzero() > 0.02 * found[name].numel()
        torch.testing.assert_close(found[name].norm(), dense[name].norm())


def test_fed_ht_thresholds_the_average_alone():
    job = paper_job(method="fedht", target_density=0.1)
    method = job.method
    server = method.init_server(fold(0))
    down = method.broadcast(server, fold(0))
    up, _, _ = method.client_update(down, (), job.federation.batches(0), fold(0, "c"))
    size = sum(m.numel() for m in up.mask.values())
    assert masks.density(down.mask) == math.floor(0.1 * size) / size
    assert masks.density(up.mask) > 0.5  # pixels never lit and dead neurons have no gradient
    after = method.server_update(server, Round([up]), fold(0)).weights
    inside = torch.cat([up.weights[n][after[n] != 0].abs() for n in up.mask])
    outside = torch.cat([up.weights[n][after[n] == 0].abs() for n in up.mask])
    assert len(inside) == math.floor(0.1 * size)
    assert inside.min() >= outside.max() * (1 - 1e-6)


def test_pruned_fedavg_is_fedavg_of_which_the_largest_weights_are_deployed():
    settings = {"dataset": "digits", "model": "mlp(hidden=[12])", "rounds": 2, "clients": 4}
    dense = fedsieve.run(method="fedavg", **settings)
    pruned = fedsieve.run(method="fedavg_prune", target_density=0.25, **settings)
    assert [r.values for r in pruned.rows] == [r.values for r in dense.rows]
    names = ("fc1.weight", "fc2.weight")
    edge = torch.cat([dense.model[n].abs().flatten() for n in names]).sort().values[-222]
    for name in names:
        expected = torch.where(dense.model[name].abs() >= edge, dense.model[name], 0)
        assert torch.equal(pruned.model[name], expected)


def test_a_target_in_bytes_is_met_by_true_bytes():
    """The mean over rounds and clients, both ways; announcements of schemas included."""
    result = fedsieve.run(
        dataset="digits", model="mlp(hidden=[64])", method="flops_pa", rounds=25, clients=6,
        cohort=3, steps=2, eval_every=25, target_bytes=9000,
    )  # fmt: skip
    sent = sum(row.up_bytes + row.down_bytes for row in result.rows)
    assert sent / (25 * 3) == pytest.approx(9000, rel=0.02)
    late = [(r.up_bytes + r.down_bytes) / 3 for r in result.rows[10:]]
    assert max(late) < 1.1 * 9000
    assert min(late) > 0.9 * 9000


@pytest.mark.parametrize("method", ["flops", "flops_pa"])
def test_gates_of_channels_cut_neurons_out_of_the_network(method):
    """Fewer weights than asked for, whole neurons alone, and a realisable saving."""
    settings = {"dataset": "digits", "model": "mlp(hidden=[40])", "rounds": 3, "clients": 4}
    result = fedsieve.run(**settings, method=method, target_density=0.25, units="channels")
    weight = result.model["fc1.weight"]
    alive = (weight != 0).any(1)
    assert int(alive.count_nonzero()) == 10  # a neuron has 64 + 10 of (64 + 10) * 40 weights
    assert (result.model["fc1.bias"][~alive] == 0).all()
    assert (result.model["fc2.weight"][:, ~alive] == 0).all()
    assert result.summary.density <= 0.25


def test_channels_are_chosen_once_they_have_been_trained():
    """A channel that was cut has no gradient: the first messages of FLoPS-PA are whole."""
    job = paper_job(
        method="flops_pa", units="channels", target_density=0.25, model="mlp(hidden=[40])"
    )
    method = job.method
    server = method.init_server(fold(0))
    down = method.broadcast(server, fold(0))
    up, _, _ = method.client_update(down, (), job.federation.batches(0), fold(0, "c"))
    assert masks.density(down.mask) == masks.density(up.mask) == 1
    after = method.server_update(server, Round([up]), fold(0))
    strongest = up.effective["fc1.weight"].square().sum(1).topk(10).indices.sort().values
    alive = (after.model.effective["fc1.weight"] != 0).any(1).nonzero()[:, 0]
    assert torch.equal(alive, strongest)
    assert after.kept == method.budget(0)


def test_channels_and_a_target_in_bytes_do_not_go_together():
    with pytest.raises(ConfigError, match="Use units=weights"):
        paper_job(method="flops_pa", units="channels", target_density=0.25, target_bytes=9000)


@pytest.mark.parametrize(
    "option", [{"ramp": -1}, {"clip_norm": 0}, {"target_density": 1.5}], ids=str
)
@pytest.mark.parametrize("method", ["flops", "flops_pa", "fediter_ht", "fedht", "fedsparse"])
def test_values_that_cannot_work_are_refused(method, option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        small_job(method=method, **option)


@pytest.mark.parametrize("method", ["flops", "flops_pa", "fediter_ht", "fedht", "fedavg_prune"])
def test_a_density_that_leaves_no_weight_is_refused(method):
    with pytest.raises(ConfigError, match=r"0 of \d+ weights, .* has 1\. Ask for"):
        paper_job(method=method, target_density=0.001, model="linear", dataset="digits")


def test_a_density_that_no_channels_fit_is_refused_with_one_that_fits():
    settings = {"method": "flops", "units": "channels", "model": "mlp(hidden=[4])"}
    with pytest.raises(ConfigError, match=r"Ask for 0\.25 or more"):
        paper_job(target_density=0.2, **settings)
    paper_job(target_density=0.25, **settings)


def test_true_messages_are_no_longer_than_values_with_indices_or_a_mask_of_bits(tmp_path):
    """Section 7: two values of each weight with 4 bytes of index, or a bit for every weight."""
    job = paper_job(method="flops_pa", model="mlp(hidden=[64])", target_density=0.1, rounds=4)
    size, kept = job.method.units.size(job.method.task.graph), job.method.budget(0)
    rounds = rounds_of(job, tmp_path)
    *_, last = rounds.play(rounds.start())
    head = 100  # counts, the mean of other gates, the frame
    assert last.messages
    for message in last.messages:
        assert message.total_bytes <= min(12 * kept + 4, 8 * kept + size // 8) + head


def test_open_gates_of_flops_are_the_medians_of_its_gates():
    method = paper_job(method="flops").method
    server = method.init_server(fold(0))
    found = method.report(server).gates
    for name, logits in server.gate_logits.items():
        stretched = torch.sigmoid(logits / 0.66) * 1.2 - 0.1
        torch.testing.assert_close(found[name], stretched.clamp(0, 1))


def test_linear_regression_finds_exactly_the_planted_support():
    """P = 200, N = 2000, rho = 0.05: both methods, specification flops, section 14."""
    shared = {
        "dataset": "synthetic(task=values, rows=2000, test_rows=500, features=200)",
        "partition": "quantity(0.5)", "clients": 20, "cohort": 10, "batch_size": 20,
        "target_density": 0.05,
    }  # fmt: skip
    for settings in (
        {"method": "flops", "rounds": 200, "eval_every": 200, "hold": 20, "scale_from": 5,
         "scale_rate": 0.9, "lr": 0.02},
        {"method": "flops_pa", "rounds": 15, "eval_every": 15, "steps": 20},
    ):  # fmt: skip
        summary = fedsieve.run(**shared, **settings, preset="paper").summary
        assert summary.true_discovery == summary.truth_recall == 1
        assert summary.density == 0.05
        assert summary.global_accuracy > 0.9
