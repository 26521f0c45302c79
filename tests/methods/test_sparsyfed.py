"""SparsyFed: powers of what is trained, the largest of each client, their mean."""

import math

import pytest
import torch

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import Round
from fedsieve.methods.sparsyfed import Server, Up
from small import SETTINGS, small_job

SIZE = 64 * 12 + 12 * 10  # weights of mlp(hidden=[12]) on 8x8 pictures


def exchange(**options):
    job = small_job(method="sparsyfed", **options)
    method = job.method
    server = method.init_server(fold(0, "init"))
    down = method.broadcast(server, fold(0, "b"))
    up, _, metrics = method.client_update(down, (), job.federation.batches(0), fold(0, "c"))
    return method, server, down, up, metrics


def test_the_first_model_is_the_task_s():
    method, server, *_ = exchange(power=1.5)
    wanted = method.task.init_params(fold(fold(0, "init"), "weights"))
    found = method.model(server, ())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)
    assert torch.equal(server.roots["fc1.bias"], wanted["fc1.bias"])
    torch.testing.assert_close(server.roots["fc1.weight"].abs() ** 1.5, wanted["fc1.weight"].abs())


def test_weights_are_signed_powers_of_roots():
    method = small_job(method="sparsyfed", power=2.0).method
    roots = {"fc1.weight": torch.tensor([[-3.0, 0.0, 0.5]]), "fc1.bias": torch.tensor([-3.0])}
    model = method.model(Server(roots, 1), ())
    assert model["fc1.weight"].tolist() == [[-9.0, 0.0, 0.25]]
    assert model["fc1.bias"].tolist() == [-3.0]


def test_a_step_on_roots_has_the_slope_of_the_power():
    """With v the root and b the power, d loss / dv = d loss / dw * b |v|^(b - 1)."""
    options = {"lr": 0.1, "clip_norm": None, "schedule": "constant", "target_density": 1.0}
    method, server, _, up, _ = exchange(power=2.0, steps=1, **options)
    job = small_job(method="sparsyfed", steps=1)
    (batch,) = job.federation.batches(0).work(fold(0, "c"))
    model = {n: v.clone().requires_grad_() for n, v in method.model(server, ()).items()}
    method.task.loss(model, batch, fold(0, "any")).backward()
    for name in ("fc1.weight", "fc2.weight"):
        roots = server.roots[name]
        wanted = roots - 0.1 * model[name].grad * 2 * roots.abs()
        torch.testing.assert_close(up.roots[name], wanted)
    bias = server.roots["fc2.bias"] - 0.1 * model["fc2.bias"].grad
    torch.testing.assert_close(up.roots["fc2.bias"], bias)


@pytest.mark.parametrize(("power", "comes_back"), [(1.25, False), (1.0, True)])
def test_a_root_of_zero_stays_zero_above_power_one(power, comes_back):
    job = small_job(method="sparsyfed", power=power, target_density=1.0)
    roots = dict(job.method.init_server(fold(0, "init")).roots)
    roots["fc2.weight"] = torch.where(torch.arange(12) < 6, roots["fc2.weight"], 0)
    down = job.method.broadcast(Server(roots, 0), fold(0, "b"))
    up, _, _ = job.method.client_update(down, (), job.federation.batches(0), fold(0, "c"))
    assert not any(value.isnan().any() for value in up.roots.values())
    assert bool(up.roots["fc2.weight"][:, 6:].any()) is comes_back


def test_a_client_sends_the_k_largest_of_what_it_has_trained():
    method, _, down, up, metrics = exchange(target_density=0.1, ramp=0)
    dense = exchange(target_density=1.0, ramp=0)[3]
    kept = math.floor(0.1 * SIZE)
    assert sum(int(m.sum()) for m in up.mask.values()) == kept
    assert method.paper_bytes(up) == 4 * (kept + 12 + 10)
    size = torch.cat([dense.roots[n].abs().flatten() for n in up.mask])
    chosen = torch.cat([m.flatten() for m in up.mask.values()])
    assert size[chosen].min() >= size[~chosen].max()
    for name, bits in up.mask.items():
        assert torch.equal(up.roots[name], torch.where(bits, dense.roots[name], 0))
    assert all(m.all() for m in down.mask.values())
    assert all(m.all() for m in metrics.mask.values())


def test_the_mean_counts_zeros_and_its_support_is_all_that_anyone_sent():
    method = small_job(method="sparsyfed", power=2.0).method
    rows = [([2.0, 0.0, 0.0], 1), ([4.0, 4.0, 0.0], 3)]
    replies = [Up({"fc1.weight": torch.tensor(v) != 0}, {"fc1.weight": torch.tensor(v)}, n)
               for v, n in rows]  # fmt: skip
    server = method.server_update(Server({}, 4), Round(replies), fold(0, "s"))
    assert server.roots["fc1.weight"].tolist() == [3.5, 3.0, 0.0]
    assert method.model(server, ())["fc1.weight"].tolist() == [12.25, 9.0, 0.0]
    assert server.rounds == 5


def test_at_full_density_and_power_one_it_is_fedavg():
    ours = fedsieve.run(**SETTINGS | {"method": "sparsyfed", "power": 1.0, "target_density": 1.0})
    plain = fedsieve.run(**SETTINGS | {"method": "fedavg"})
    for name, value in plain.model.items():
        torch.testing.assert_close(ours.model[name], value)


def test_with_one_client_density_follows_the_ramp():
    """Rho + (1 - rho) (1 - t / 3)^3 for rho = 0.25 after t = 1, 2, 3 and 4 rounds."""
    settings = SETTINGS | {"method": "sparsyfed", "target_density": 0.25, "cohort": 1, "ramp": 3}
    rows = fedsieve.run(**settings).rows
    wanted = [0.25 + 0.75 * left**3 for left in (2 / 3, 1 / 3, 0, 0)]
    assert [row.density for row in rows] == [math.floor(w * SIZE + 1e-9) / SIZE for w in wanted]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_density": 0.0}, "target_density"),
        ({"target_density": 0.001}, "keeps none of the 888"),
        ({"power": 0.5}, "power"),
        ({"ramp": -1}, "ramp"),
        ({"lr": 0.0}, "lr"),
        ({"clip_norm": 0.0}, "clip_norm"),
    ],
)
def test_values_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        small_job(method="sparsyfed", **options)
