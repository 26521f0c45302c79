"""A task is a set of pure functions of parameters."""

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_squared_error, r2_score
from torch import nn
from torch.nn import functional

from fedsieve.core import keys
from fedsieve.core.errors import ConfigError, DataError, ModelError
from fedsieve.core.keys import Key
from fedsieve.core.method import Batch
from fedsieve.inference import variational
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.cnn7 import Cnn7
from fedsieve.models.zoo.lenet import ConvSmall
from fedsieve.models.zoo.linear import Linear, Mlp
from fedsieve.optim.local import train
from fedsieve.optim.optimisers import Adam

IMAGE = (1, 8, 8)


def digits_task():
    return ModelTask(lambda: ConvSmall().build(IMAGE, 10), "classes", IMAGE)


def norm_net():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def dropout_net():
    return nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3))


class Viewed(nn.Module):
    """The way to a linear layer that many models take: it works on contiguous images alone."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 16, 10)

    def flat(self, x):
        return x.view(x.size(0), -1)

    def forward(self, x):
        return self.fc(self.flat(self.conv2(functional.relu(self.conv1(x)))))


class Flattened(Viewed):
    def flat(self, x):
        return x.flatten(1)


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(functional.dropout(x, 0.5, self.training))


def batch(examples=8, features=6, classes=3):
    torch.manual_seed(1)
    return Batch(torch.randn(examples, features), torch.randint(classes, (examples,)))


def clone(params):
    return {name: t.clone() for name, t in params.items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_equal_keys_start_equal_and_others_do_not():
    task = digits_task()
    assert equal(task.init_params(Key(3)), task.init_params(Key(3)))
    assert not equal(task.init_params(Key(3)), task.init_params(Key(4)))


def test_a_module_is_its_own_start_for_every_key_and_is_never_touched():
    module = norm_net()
    before = clone(module.state_dict())
    task = ModelTask(module, "classes", (6,))
    start = task.init_params(Key(1))
    assert equal(start, {k: before[k] for k in start})
    task.loss(start, batch(), Key(0))
    assert equal(task.init_params(Key(2)), {k: before[k] for k in start})
    assert equal(module.state_dict(), before)


def test_params_are_parameters_in_module_order_then_statistics_as_contiguous_floats():
    task = ModelTask(lambda: norm_net().double(), "classes", (6,))
    params = task.init_params(Key(0))
    linear, norm = ("weight", "bias"), ("running_mean", "running_var")
    expected = [f"{i}.{k}" for i in (0, 1, 3) for k in linear] + [f"1.{k}" for k in norm]
    assert list(params) == expected
    assert task.buffers == {f"1.{k}" for k in norm}
    assert all(t.dtype == torch.float32 and t.is_contiguous() for t in params.values())
    assert not any(t.requires_grad for t in params.values())


def test_constants_of_a_module_are_no_params():
    module = nn.Sequential(nn.Linear(6, 3))
    module.register_buffer("order", torch.arange(3))
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    module.register_buffer("offset", torch.zeros(2))
    assert ModelTask(module, "classes", (6,)).buffers == {"offset"}


def test_loss_is_the_cross_entropy_of_the_given_params():
    task = ModelTask(lambda: Linear(bias=True).build((6,), 3), "classes", (6,))
    params, data = task.init_params(Key(0)), batch()
    logits = data.x @ params["fc.weight"].T + params["fc.bias"]
    log_prob = logits - logits.logsumexp(1, keepdim=True)
    expected = -log_prob[range(len(data.y)), data.y].mean()
    torch.testing.assert_close(task.loss(params, data, Key(0)), expected)
    torch.testing.assert_close(task.predict(params, data.x), logits)


def test_nothing_leaks_between_two_sets_of_params():
    task = ModelTask(norm_net, "classes", (6,))
    a, b, data = task.init_params(Key(0)), task.init_params(Key(1)), batch()
    alone = task.loss(clone(a), data, Key(0)), task.predict(a, data.x)
    task.loss(b, data, Key(0))
    assert torch.equal(task.predict(a, data.x), alone[1])
    task.predict(b, data.x)
    assert torch.equal(task.loss(a, data, Key(0)), alone[0])


def test_a_tensor_replaced_or_changed_in_the_same_dict_is_seen():
    task = ModelTask(lambda: Linear().build((6,), 3), "classes", (6,))
    params, x = task.init_params(Key(0)), batch().x
    task.predict(params, x)
    params["fc.weight"] = torch.zeros(3, 6)
    assert not task.predict(params, x).any()
    params["fc.weight"].fill_(1.0)
    torch.testing.assert_close(task.predict(params, x), x.sum(1, keepdim=True).expand(-1, 3))


def test_only_statistics_change_and_exactly_as_batch_norm_changes_its_own():
    task = ModelTask(norm_net, "classes", (6,))
    params, data = task.init_params(Key(0)), batch()
    before, module = clone(params), norm_net()
    module.load_state_dict(params, strict=False)
    task.loss(params, data, Key(0))
    module.train()(data.x)
    for name in params:
        assert torch.equal(params[name], module.state_dict()[name])
        assert torch.equal(params[name], before[name]) == (name not in task.buffers)


def test_predict_uses_the_statistics_and_changes_nothing():
    task = ModelTask(norm_net, "classes", (6,))
    params, data = task.init_params(Key(0)), batch()
    task.loss(params, data, Key(0))
    before, module = clone(params), norm_net()
    module.load_state_dict(params, strict=False)
    assert torch.equal(task.predict(params, data.x), module.eval()(data.x))
    assert equal(params, before)


def test_a_failing_forward_leaves_no_tensor_behind():
    task = digits_task()
    params, key = task.init_params(Key(0)), Key(0)
    with pytest.raises(RuntimeError):
        task.predict(params, torch.zeros(2, 3, 8, 8))
    held = {id(p) for p in task._module.parameters()}
    assert held.isdisjoint(map(id, params.values()))
    assert equal(task.init_params(key), params)


def test_gradients_reach_the_tensors_given_and_what_they_were_made_of():
    task = ModelTask(lambda: Mlp(hidden=(4,)).build((6,), 3), "classes", (6,))
    leaves = {k: v.requires_grad_() for k, v in task.init_params(Key(0)).items()}
    halves = {k: v * 0.5 for k, v in leaves.items()}
    grads = torch.autograd.grad(task.loss(halves, batch(), Key(0)), list(leaves.values()))
    assert [g.shape for g in grads] == [v.shape for v in leaves.values()]
    assert all(g.any() for g in grads)
    assert not task.predict(leaves, batch().x).requires_grad


def test_params_of_other_widths_run_in_the_same_task():
    wide = ModelTask(lambda: Mlp(hidden=(9,)).build((6,), 3), "classes", (6,))
    task = ModelTask(lambda: Mlp(hidden=(4,)).build((6,), 3), "classes", (6,))
    params, x = wide.init_params(Key(0)), batch().x
    assert torch.equal(task.predict(params, x), wide.predict(params, x))


@pytest.mark.parametrize("has_noise", [False, True])
def test_a_view_behind_convolutions_trains_and_predicts_as_flatten_does(has_noise):
    found = []
    for build in (Viewed, Flattened):
        task = ModelTask(build, "classes", IMAGE)
        x = keys.normal(Key(1), (5, *IMAGE))
        batch = Batch(x, torch.arange(5))
        start = variational.start(task, Key(2), -6.0)

        def loss(at, batch, key, task=task):
            drawn = variational.draw(at, key, {}) if has_noise else at.weights
            return task.loss(drawn, batch, key)

        optimisers = (Adam(), Adam() if has_noise else None)
        trained = train(loss, start, [batch] * 3, optimisers, lr=0.01, key=Key(3)).params
        found.append((trained, task.predict(trained.weights, x)))
    torch.testing.assert_close(found[0], found[1])


def test_layers_see_channels_last_tensors_as_they_were_given():
    task = digits_task()
    params = task.init_params(Key(0))
    last = {
        k: v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in params.items()
    }
    seen = []
    task._module.conv2.register_forward_pre_hook(lambda m, _: seen.append(m.weight))
    x = torch.randn(4, *IMAGE)
    outputs = task.predict(last, x.to(memory_format=torch.channels_last))
    assert seen[0] is last["conv2.weight"]
    torch.testing.assert_close(outputs, task.predict(params, x))


@pytest.mark.parametrize("build", [dropout_net, FunctionalDropout])
def test_dropout_belongs_to_the_key(build):
    task = ModelTask(build, "classes", (6,))
    params, data = task.init_params(Key(0)), batch()
    loss = task.loss(params, data, Key(5))
    assert torch.equal(loss, task.loss(params, data, Key(5)))
    assert not torch.equal(loss, task.loss(params, data, Key(6)))
    assert torch.equal(task.predict(params, data.x), task.predict(params, data.x))


@pytest.mark.parametrize("build", [dropout_net, FunctionalDropout, norm_net])
def test_the_users_own_random_state_is_never_disturbed(build):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    data = Batch(torch.ones(4, 6), torch.zeros(4, dtype=torch.long))
    task = ModelTask(build, "classes", (6,))
    params = task.init_params(Key(0))
    task.loss(params, data, Key(1))
    task.predict(params, data.x)
    assert torch.equal(torch.rand(3), expected)


def test_a_model_without_dropout_does_not_pay_for_it():
    assert not ModelTask(norm_net, "classes", (6,))._is_random
    assert ModelTask(dropout_net, "classes", (6,))._is_random


def test_cumulative_batch_norm_is_refused():
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))
    with pytest.raises(ModelError, match=r"layer '1' \(BatchNorm1d\) has momentum=None"):
        ModelTask(module, "classes", (6,))


def test_statistics_of_cnn7_are_the_1280_of_its_norms():
    shape = (3, 28, 28)
    task = ModelTask(lambda: Cnn7().build(shape, 10), "classes", shape)
    params = task.init_params(Key(0))
    assert sum(params[name].numel() for name in task.buffers) == 1280


def test_a_task_tells_what_the_model_needs_to_be_known_by():
    task = linear_task("labels", 4)
    assert task.kind == "labels"
    assert task.graph.maskable == ("fc.weight",)
    assert not task.buffers


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"kind of task 'class'\. Did you mean 'classes'"):
        ModelTask(norm_net, "class", (6,))


def linear_task(kind, outputs):
    return ModelTask(lambda: Linear().build((6,), outputs), kind, (6,))


def test_accuracy_and_loss_are_those_of_an_independent_implementation():
    task = linear_task("classes", 3)
    outputs, y = task.predict(task.init_params(Key(0)), batch(50).x), batch(50).y
    tally = task.tally(outputs, y)
    assert tally.dtype == torch.float64
    assert tally[0] == (outputs.argmax(1) == y).sum()
    assert tally[2] == 50
    assert task.score(tally) == pytest.approx(accuracy_score(y, outputs.argmax(1)))
    expected = log_loss(y, outputs.double().softmax(1), labels=range(3))
    assert task.mean_loss(tally) == pytest.approx(expected, rel=1e-6)


def test_micro_f1_and_loss_are_those_of_an_independent_implementation():
    task = linear_task("labels", 4)
    params, x = task.init_params(Key(0)), batch(50).x
    y = (torch.rand(50, 4) < 0.3).float()
    outputs = task.predict(params, x)
    tally = task.tally(outputs, y)
    expected = f1_score(y.int(), outputs.sigmoid() > 0.5, average="micro")
    assert task.score(tally) == pytest.approx(expected)
    prob = outputs.double().sigmoid()
    direct = -(y * prob.log() + (1 - y) * (1 - prob).log()).sum(1).mean()
    assert task.mean_loss(tally) == pytest.approx(direct.item())
    assert task.loss(params, Batch(x, y), Key(0)).item() == pytest.approx(direct.item(), rel=1e-5)


def test_a_logistic_unit_is_scored_by_accuracy():
    task = linear_task("binary", 1)
    params, x = task.init_params(Key(0)), batch(50).x
    y = (x[:, 0] > 0).long()
    outputs = task.predict(params, x)
    assert outputs.shape == (50,)
    tally = task.tally(outputs, y)
    prob = outputs.double().sigmoid()
    assert task.score(tally) == pytest.approx(accuracy_score(y, prob > 0.5))
    expected = log_loss(y, prob)
    assert task.mean_loss(tally) == pytest.approx(expected, rel=1e-6)
    assert task.loss(params, Batch(x, y), Key(0)).item() == pytest.approx(expected, rel=1e-5)


def test_r2_and_squared_error_are_those_of_an_independent_implementation():
    task = linear_task("values", 1)
    params, x = task.init_params(Key(0)), batch(50).x
    y = x.sum(1) + 3
    outputs = task.predict(params, x)
    assert outputs.shape == (50,)
    tally = task.tally(outputs, y)
    assert task.score(tally) == pytest.approx(r2_score(y, outputs), rel=1e-5)
    expected = mean_squared_error(y, outputs)
    assert task.mean_loss(tally) == pytest.approx(expected)
    assert task.loss(params, Batch(x, y), Key(0)).item() == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "outputs"), [("classes", 3), ("labels", 3), ("values", 1)])
def test_tallies_of_disjoint_sets_add_up(kind, outputs):
    task = linear_task(kind, outputs)
    x, y = batch(50)
    y = {"classes": y, "labels": functional.one_hot(y).float(), "values": x[:, 0]}[kind]
    out = task.predict(task.init_params(Key(0)), x)
    parts = task.tally(out[:13], y[:13]) + task.tally(out[13:], y[13:])
    torch.testing.assert_close(parts, task.tally(out, y))


@pytest.mark.parametrize(("kind", "outputs"), [("labels", 4), ("values", 2)])
def test_targets_of_another_shape_than_the_outputs_are_refused(kind, outputs):
    task = linear_task(kind, outputs)
    x = batch(5).x
    with pytest.raises(DataError, match=rf"outputs of shape \(5, {outputs}\).*shape \(5,\)"):
        task.loss(task.init_params(Key(0)), Batch(x, x[:, 0]), Key(0))
