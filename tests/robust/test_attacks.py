"""Clients that lie do what they are said to do, and the same on every executor."""

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.core.method import message_to
from fedsieve.core.options import read
from fedsieve.robust.attacks import ATTACKS, Group, Turn
from fedsieve.robust.updates import entries
from small import SETTINGS, StopAfter, same_in_a_pool, small_job

SEED = 7


def turn(method="fedavg", share=0.4, **settings):
    job = small_job(method=method, **settings)
    group = Group(SEED, 4, share, job.federation)
    client, key = group.members[0], fold(SEED, "init")
    down = message_to(client, job.method.broadcast(job.method.init_server(key), key))
    state, data = job.method.init_client(client, key), job.federation.batches(client)
    return Turn(job.method, client, down, state, data, fold(SEED, "client", 2, client), group)


def reply(text, asked):
    return read(text, ATTACKS, "attack").reply(asked)[0]


def honest(asked):
    return asked.method.client_update(asked.down, asked.state, asked.data, asked.key)[0]


def changes(up, down):
    return [x.change for x in entries(up, down)]


@pytest.mark.parametrize("method", ["fedavg", "fediter_ht", "flops_pa", "spafl", "vardrop"])
@pytest.mark.parametrize(("text", "factor"), [("sign_flip", -1), ("scale(50)", 50)])
def test_updates_are_turned_round_or_stretched(method, text, factor):
    asked = turn(method)
    found, true = (changes(up, asked.down) for up in (reply(text, asked), honest(asked)))
    for ours, theirs in zip(found, true, strict=True):
        assert torch.allclose(ours, factor * theirs, atol=1e-4 * abs(factor))
    assert any(x.any() for x in true)


def test_noise_has_the_deviation_asked_for_and_the_same_bits_again():
    asked = turn()
    up = reply("gaussian(2)", asked)
    noise = torch.cat([x.flatten() for x in changes(up, asked.down)])
    assert noise.std().item() == pytest.approx(2, rel=0.1)
    assert tree.equal(up, reply("gaussian(2)", asked))


def test_flipped_labels_are_the_last_but_the_true_ones():
    class Spy:
        def client_update(self, down, state, data, key):
            return (next(data.ordered()).y, next(data.work(key)).y, data.draw(key).y), (), None

    asked = turn()
    true = [next(asked.data.ordered()).y, next(asked.data.work(asked.key)).y]
    true.append(asked.data.draw(asked.key).y)
    classes = 1 + max(int(b.y.max()) for b in asked.data.ordered())
    flipped, *_ = read("label_flip", ATTACKS, "attack").reply(asked._replace(method=Spy()))
    assert [y.tolist() for y in flipped] == [(classes - 1 - y).tolist() for y in true]


def test_a_replay_is_the_reply_of_the_first_round(tmp_path):
    given = {**SETTINGS, "seed": SEED, "cohort": 5, "save_messages": "1,3"}
    result = fedsieve.run(**given, attack="replay", attackers=0.4, out=tmp_path / "run")
    plain = fedsieve.run(**given, out=tmp_path / "plain")
    assert result.rows[0].up_bytes == plain.rows[0].up_bytes
    assert result.summary.model_hash != plain.summary.model_hash
    asked = turn()
    first = asked._replace(key=fold(SEED, "client", 1, asked.client))
    assert tree.equal(reply("replay", asked), honest(first))


def test_a_shift_is_the_mean_of_the_attackers_less_their_deviation():
    asked = turn()
    each = []
    for client in asked.group.members:
        data = asked.group.data.batches(client)
        each.append(changes(honest(asked._replace(data=data)), asked.down))
    for place, ours in enumerate(changes(reply("shift(1.5)", asked), asked.down)):
        moved = torch.stack([one[place] for one in each])
        expected = moved.mean(0) - 1.5 * moved.std(0, correction=0)
        assert torch.allclose(ours, expected, atol=1e-5)


def test_who_lies_is_drawn_once_for_a_run():
    data = small_job(clients=20).federation
    members = Group(3, 10, 0.2, data).members
    assert len(members) == 4
    assert members == Group(3, 99, 0.2, data).members
    assert Group(3, 10, 0, data).members == []


@pytest.mark.parametrize("text", ["sign_flip", "replay", "shift(1)", "label_flip"])
def test_two_processes_give_the_bits_of_one(text):
    same_in_a_pool({"attack": text, "attackers": 0.4, "aggregation": "trimmed_mean(0.4)"})


def test_an_attacked_run_can_be_continued(tmp_path):
    given = {**SETTINGS, "attack": "scale(10)", "aggregation": "median", "checkpoint_every": 1}
    whole = fedsieve.run(**given)
    fedsieve.run(**given | {"rounds": 4}, out=tmp_path / "run", watcher=StopAfter(2))
    resumed = fedsieve.run(out=tmp_path / "run", resume=True)
    assert resumed.summary.model_hash == whole.summary.model_hash


def test_nobody_lies_by_default_and_the_words_are_checked():
    plain = fedsieve.run(**SETTINGS)
    nobody = fedsieve.run(**SETTINGS, attack="sign_flip", attackers=0.0)
    assert nobody.summary.model_hash == plain.summary.model_hash
    with pytest.raises(ConfigError, match="sign_flip"):
        fedsieve.run(**SETTINGS, attack="signflip")
    with pytest.raises(ConfigError, match="attackers"):
        fedsieve.run(**SETTINGS, attack="replay", attackers=1.5)
