"""What a client claims has bounds, and an update that ruins the model is refused at once."""

import dataclasses

import pytest
import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.errors import ResumeError, RoundError
from fedsieve.engine.checkpoint import checkpoints_of
from fedsieve.robust.aggregation import Median
from fedsieve.robust.attacks import Group, attacked
from fedsieve.robust.updates import MedianNorm
from small import SETTINGS, StopAfter, rounds_of, small_job


class Forged:
    """An attack that changes honest replies."""

    def __init__(self, forge):
        self.forge = forge

    def reply(self, turn):
        up, *rest = turn.method.client_update(turn.down, turn.state, turn.data, turn.key)
        return self.forge(up), *rest


def lying(job, forge, *liars):
    """The job with replies of these clients forged."""
    group = Group(job.config.seed, job.config.rounds, 0, job.federation)
    group.__dict__["members"] = list(liars)
    return dataclasses.replace(job, method=attacked(job.method, Forged(forge), group))


def without(job, folder, *absent, **plan):
    """The first round as if these clients had not answered."""
    rounds = rounds_of(job, folder, **plan)
    inner = rounds.execute
    rounds.execute = lambda requests: inner(r for r in requests if r.client not in absent)
    return next(rounds.play(rounds.start()))


@pytest.mark.parametrize("claim", [10**12, 2**63 - 1, 0])
@pytest.mark.parametrize("method", ["fedavg", "fedmedian", "vardrop", "flops_pa"])
def test_a_false_number_of_examples_is_the_failure_of_its_sender(method, claim, tmp_path, caplog):
    job = small_job(method=method, rounds=2, cohort=5)
    forge = lambda up: up._replace(examples=claim)  # noqa: E731
    rounds = rounds_of(lying(job, forge, 2), tmp_path / "a")
    played = list(rounds.play(rounds.start()))
    assert [p.row.lost for p in played] == [[2], [2]]
    assert f"does not fit: examples: it claims {claim}," in caplog.text
    honest = without(job, tmp_path / "b", 2)
    assert tree.equal(played[0].position.server, honest.position.server)


def test_where_data_is_elsewhere_the_first_number_counts(tmp_path):
    job = small_job(rounds=3, cohort=5)
    claims = iter([50, 50, 51])  # round after round
    forge = lambda up: up._replace(examples=next(claims))  # noqa: E731
    rounds = rounds_of(lying(job, forge, 2), tmp_path, holds_data=False)
    played = list(rounds.play(rounds.start()))
    assert [p.row.lost for p in played] == [[], [], [2]]
    assert played[-1].position.examples[2] == 50


def test_no_number_is_believed_beyond_reason_even_at_first(tmp_path):
    job = small_job(rounds=1, cohort=5)
    forge = lambda up: up._replace(examples=10**12)  # noqa: E731
    rounds = rounds_of(lying(job, forge, 2), tmp_path, holds_data=False)
    (played,) = rounds.play(rounds.start())
    assert played.row.lost == [2]


def test_what_clients_said_first_outlives_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    fedsieve.run(**SETTINGS, checkpoint_every=1, out=folder)
    saved = checkpoints_of(folder)[-1].saved()
    position = saved.position(())
    assert position.examples
    job = small_job()
    assert all(n == job.federation.examples(c) for c, n in position.examples.items())


def test_counts_are_capped(tmp_path):
    """With a cap below all of them every client counts the same."""
    job = small_job(rounds=1, cohort=5)
    capped = rounds_of(job, tmp_path / "a", max_examples=1)
    (played,) = capped.play(capped.start())
    uniform = small_job(rounds=1, cohort=5, weighting="uniform")
    rounds = rounds_of(uniform, tmp_path / "b")
    (expected,) = rounds.play(rounds.start())
    for name, value in played.position.server.weights.items():
        assert torch.allclose(value, expected.position.server.weights[name], atol=1e-7)


def huge(up):
    return up._replace(weights={n: torch.full_like(w, 1e30) for n, w in up.weights.items()})


def test_an_update_that_ruins_the_model_is_refused_and_names_who_sent_it(tmp_path):
    rounds = rounds_of(lying(small_job(rounds=3, cohort=5), huge, 1, 3), tmp_path)
    named = r"client 1 \(1e\+30\), client 3"
    with pytest.raises(RoundError, match=rf"round 1: the update .*e\+29.*{named}"):
        list(rounds.play(rounds.start()))


@pytest.mark.parametrize("plan", ["clip", "median"])
def test_a_run_that_bounds_updates_outlives_the_same(plan, tmp_path):
    how = {"clip": {"clip_update": MedianNorm(3)}, "median": {"aggregation": Median()}}[plan]
    rounds = rounds_of(lying(small_job(rounds=3, cohort=5), huge, 1, 3), tmp_path, **how)
    *_, last = rounds.play(rounds.start())
    assert max(w.abs().max() for w in last.position.server.weights.values()) < 10


def test_a_round_in_which_most_replies_fail_ends_the_run(tmp_path):
    nan = lambda up: huge(up)._replace(  # noqa: E731
        weights={n: w * float("nan") for n, w in up.weights.items()}
    )
    job = small_job(rounds=1, cohort=5)
    rounds = rounds_of(lying(job, nan, 0, 1, 2), tmp_path / "a")
    with pytest.raises(RoundError, match=r"2 of 5 clients .* more must be usable than fail"):
        list(rounds.play(rounds.start()))
    rounds = rounds_of(lying(job, nan, 0, 1), tmp_path / "b")
    (played,) = rounds.play(rounds.start())
    assert played.row.clients == 3
    rounds = rounds_of(lying(job, nan, 0, 1, 2, 3), tmp_path / "c", min_replies=1)
    (played,) = rounds.play(rounds.start())
    assert played.row.clients == 1


def test_gates_of_another_shape_are_the_failure_of_their_sender(tmp_path):
    """A field of which the broadcast has nothing like: most replies say what is usual."""
    job = small_job(method="fedsparse", rounds=1, cohort=5)

    def forge(up):
        name = next(iter(up.gates))
        one = torch.ones([1] * up.gates[name].dim(), dtype=torch.bool)
        return up._replace(gates=up.gates | {name: one})

    rounds = rounds_of(lying(job, forge, 2), tmp_path / "a")
    (played,) = rounds.play(rounds.start())
    assert played.row.lost == [2]
    assert tree.equal(played.position.server, without(job, tmp_path / "b", 2).position.server)


def test_rules_of_trust_may_change_when_a_run_goes_on(tmp_path):
    given = {**SETTINGS, "checkpoint_every": 1, "out": tmp_path / "run"}
    fedsieve.run(**given, watcher=StopAfter(2))
    result = fedsieve.run(
        out=tmp_path / "run", resume=True, aggregation="median", clip_update="median_norm(3)"
    )
    assert result.config.aggregation == "median"
    assert len(result.rows) == 4
    with pytest.raises(ResumeError, match="attack"):
        fedsieve.run(out=tmp_path / "run", resume=True, attack="replay")
