"""What every registered method must do, whatever it is."""

import dataclasses

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.keys import fold
from fedsieve.core.message import Kept, fields
from fedsieve.core.method import Round, message_to, message_types
from fedsieve.engine import blob
from fedsieve.metrics.macs import density
from fedsieve.sparsity import masks
from fedsieve.wire.codec import Decoder, encode
from small import (
    METHODS,
    SETTINGS,
    rounds_of,
    same_in_a_pool,
    same_when_resumed,
    small_job,
)

pytestmark = pytest.mark.parametrize("name", METHODS)


def one_exchange(name):
    """Server, Down, State, Up and replies of one round on a small job."""
    job = small_job(method=name)
    method = job.method
    server = method.init_server(fold(0, "init"))
    state = method.init_client(0, fold(0, "init"))
    down = message_to(0, method.broadcast(server, fold(0, "broadcast")))
    up, after, metrics = method.client_update(
        down, state, job.federation.batches(0), fold(0, "client")
    )
    return job, server, state, down, up, after, metrics


def as_sent(message):
    """The message as its receiver must see it: values outside a Kept mask are 0."""
    values = message._asdict()
    for name, role in fields(type(message)):
        if isinstance(role, Kept):
            mask = values[role.where]
            zeroed = {
                n: torch.where(mask[n], t, torch.zeros_like(t)) if n in mask else t
                for n, t in values[name].items()
            }
            values[name] = zeroed
    return type(message)(**values)


def test_is_a_frozen_dataclass_with_a_documented_file(name):
    method = small_job(method=name).method
    assert dataclasses.is_dataclass(method)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.task = None
    doc = __import__(type(method).__module__, fromlist=["x"]).__doc__
    assert all(word in doc for word in ("Paper", "Symbols", "Differs"))


def test_functions_do_not_change_their_inputs(name):
    job = small_job(method=name)
    method, key = job.method, fold(0, "init")
    server, state = method.init_server(key), method.init_client(0, key)
    before = tree.digest((server, state))
    down = message_to(0, method.broadcast(server, key))
    sent = tree.digest(down)
    up, after, _ = method.client_update(down, state, job.federation.batches(0), key)
    received = tree.digest((up, after))
    method.server_update(server, Round([up, up]), key)
    method.model(server, after)
    assert tree.digest((server, state)) == before
    assert tree.digest(down) == sent
    assert tree.digest((up, after)) == received


def test_same_inputs_same_outputs(name):
    first, second = one_exchange(name), one_exchange(name)
    assert tree.equal(first[4], second[4])
    assert tree.equal(first[5], second[5])


def test_messages_survive_the_wire(name):
    job, _, _, down, up, _, _ = one_exchange(name)
    for message, kind in zip((down, up), message_types(job.method), strict=True):
        assert type(message) is kind
        payload = encode(message)
        assert tree.equal(Decoder().decode(payload.data, kind), as_sent(message))
        assert sum(payload[1:]) == len(payload.data)


def test_trees_survive_the_disk(name, tmp_path):
    _, server, _, _, _, after, _ = one_exchange(name)
    for value in (server, after):
        assert tree.equal(blob.unpack(type(value), blob.pack(value)), value)


class Counted:
    """A client's data that counts the examples it hands out for training, in parts or whole."""

    def __init__(self, data, handed=None):
        self._data, self._handed = data, [] if handed is None else handed
        self.examples, self.epochs, self.steps = data.examples, data.epochs, data.steps
        self.ordered = data.ordered

    @property
    def count(self):
        return sum(self._handed)

    def epoch(self, key):
        return map(self._passed, self._data.epoch(key))

    def work(self, key):
        return map(self._passed, self._data.work(key))

    def draw(self, key):
        return self._passed(self._data.draw(key))

    def split(self, share):
        return tuple(Counted(part, self._handed) for part in self._data.split(share))

    def _passed(self, batch):
        self._handed.append(len(batch.y))
        return batch


def test_metrics_count_what_was_trained(name):
    job, _, state, down, *_ = one_exchange(name)
    data = Counted(job.federation.batches(0))
    *_, metrics = job.method.client_update(down, state, data, fold(0, "client"))
    assert 0 < data.count <= metrics.processed <= data.count + metrics.dense_gradients


def test_deployed_model_has_the_density_of_the_row(name, tmp_path):
    job = small_job(method=name, rounds=1)
    rounds = rounds_of(job, tmp_path)
    (played,) = rounds.play(rounds.start())
    graph = job.method.task.graph
    server = played.position.server
    if job.method.personal:
        models = [
            job.method.model(server, rounds.stores.states.get(c))
            for c in rounds.stores.states.known()
        ]
    else:
        models = [job.method.model(server, ())]
    shares = [masks.density(masks.nonzero(m, graph.maskable)) for m in models]
    assert played.row.density == pytest.approx(sum(shares) / len(shares))
    assert played.row.density == pytest.approx(sum(density(m, graph) for m in models) / len(models))


def test_in_line_equals_pool_bit_for_bit(name):
    same_in_a_pool({"method": name})


def test_resumed_equals_uninterrupted_bit_for_bit(name, tmp_path):
    same_when_resumed({"method": name}, tmp_path / "run")


def test_the_seed_decides_everything(name):
    same = fedsieve.run(**SETTINGS, method=name).summary
    again = fedsieve.run(**SETTINGS, method=name).summary
    other = fedsieve.run(**SETTINGS | {"seed": 8}, method=name).summary
    assert same.model_hash == again.model_hash
    assert same.model_hash != other.model_hash
