"""Every registered method gives the same bits in this process and through Flower's grid."""

from contextlib import contextmanager
from functools import partial

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from fedsieve.core import tree
from fedsieve.deploy.dispatch import Remote
from fedsieve.deploy.flower.transport import GridTransport
from fedsieve.deploy.server import receipts
from fedsieve.jobs import api
from fedsieve.jobs.api import Watcher
from fedsieve.jobs.execution import Engine
from grid import LocalGrid, node_servers, terms_of
from small import METHODS, small_job, steady


def played(job, folder, before_call=lambda client: None):
    """The result of a job on nodes."""

    def answer(envelope, client, node_server):
        before_call(client)
        return node_server.answer(envelope)

    found = node_servers(job, folder / "nodes")
    grid = LocalGrid({100 + c: partial(answer, client=c, node_server=d) for c, d in found.items()})

    @contextmanager
    def nodes(job, states):
        yield Engine(receipts(states), Remote(GridTransport(lambda: grid), terms_of(job)))

    return api.play(job, None, resume=False, watcher=Watcher(), open_engine=nodes)


@pytest.mark.parametrize("name", METHODS)
def test_three_rounds_with_three_clients_end_in_the_same_bits(name, tmp_path):
    job = small_job(method=name, clients=3, cohort=3, rounds=3)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)  # bytes and accuracies too
    if here.model is not None and not job.partition.is_pooled:
        assert tree.equal(there.model, here.model)


@pytest.mark.parametrize("name", ["fedmix", "fediter_ht"])
def test_clients_that_sit_out_rounds_change_nothing(name, tmp_path):
    job = small_job(method=name, clients=5, cohort=2, rounds=5, eval_every=2)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedavg", "cohort": 2, "rounds": 4},
        # Late devices send nothing in some rounds.
        {"method": "vardrop", "preset": "paper", "rounds": 8, "async_staleness": 2},
    ],
    ids=lambda settings: settings["method"],
)
def test_residuals_of_error_feedback_stay_with_the_nodes(settings, tmp_path):
    shared = {"wire": "int8", "error_feedback": True, "clients": 3, "cohort": 3}
    job = small_job(**shared | settings)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)


@pytest.mark.parametrize(
    ("method", "kind"),
    [("fedavg", "ef21"), ("fedavg", "ahead(0.5, decay=0.9)"), ("fediter_ht", "ef21")],
)
def test_error_feedback_is_the_same_with_nodes_that_sit_out_rounds(method, kind, tmp_path):
    how = {"up": "top_k(0.1)", "down": "lattice", "error_feedback": kind}
    job = small_job(method=method, clients=3, cohort=2, rounds=5, **how)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)


def test_a_node_that_lost_its_last_change_sends_without(tmp_path):
    how = {"up": "top_k(0.1)", "error_feedback": "ef21", "clients": 3, "cohort": 3, "rounds": 4}
    job = small_job(method="fedavg", **how)
    here = api.play(job, None, resume=False, watcher=Watcher())
    lost = []

    def lose(client):
        for memory in (tmp_path / "nodes" / "1").glob("jobs/*/memory.msgpack"):
            if client == 1 and not lost:
                lost.append(memory.unlink())

    there = played(job, tmp_path, lose)
    assert lost
    assert [row.failed for row in there.rows] == [0, 0, 0, 0]
    assert there.summary.model_hash != here.summary.model_hash, "its change was not taken as 0"


def test_a_node_that_lost_its_masks_is_sent_the_whole_message(tmp_path):
    job = small_job(method="fediter_ht", ramp=0, clients=3, cohort=3, rounds=4)
    here = api.play(job, None, resume=False, watcher=Watcher())
    lost = []

    def lose(client):
        for memory in (tmp_path / "nodes" / "1").glob("jobs/*/memory.msgpack"):
            if client == 1 and not lost:
                lost.append(memory.unlink())

    there = played(job, tmp_path, lose)
    assert lost
    assert there.summary.model_hash == here.summary.model_hash
    assert [row.failed for row in there.rows] == [0, 0, 0, 0]
    more = [b.down_bytes - a.down_bytes for a, b in zip(here.rows, there.rows, strict=True)]
    assert more[0] == more[2] == more[3] == 0
    assert more[1] > here.rows[0].down_bytes / 3 / 2, "a whole message more, and no other"
