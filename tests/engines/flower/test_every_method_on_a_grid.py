"""Every registered method gives the same bits in this process and through Flower's grid."""

from contextlib import contextmanager

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from fedsieve import api
from fedsieve.api import Watcher
from fedsieve.core import tree
from fedsieve.deploy import receipts
from fedsieve.engines.flower.carrier import GridCarrier
from fedsieve.engines.remote.dispatch import Remote
from fedsieve.loop import Engine
from grid import LocalGrid, desks, terms_of
from small import METHODS, small_job, steady


def played(job, folder):
    """The result of a job on nodes, and the messages that were counted."""
    grid = LocalGrid({100 + c: d.answer for c, d in desks(job, folder / "nodes").items()})

    @contextmanager
    def nodes(job, states):
        yield Engine(receipts(states), Remote(GridCarrier(lambda: grid), terms_of(job)))

    return api.play(job, None, resume=False, watcher=Watcher(), open_engine=nodes)


@pytest.mark.parametrize("name", METHODS)
def test_three_rounds_with_three_clients_end_in_the_same_bits(name, tmp_path):
    job = small_job(method=name, clients=3, cohort=3, rounds=3)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)  # bytes and accuracies too
    if here.model is not None and not job.federation.is_pooled:
        assert tree.equal(there.model, here.model)


@pytest.mark.parametrize("name", ["fedmix", "fediter_ht"])
def test_clients_that_sit_out_rounds_change_nothing(name, tmp_path):
    job = small_job(method=name, clients=5, cohort=2, rounds=5, eval_every=2)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)


def test_residuals_of_error_feedback_stay_with_the_nodes(tmp_path):
    settings = {"wire": "int8", "error_feedback": True, "clients": 3, "cohort": 2, "rounds": 4}
    job = small_job(method="fedavg", **settings)
    here = api.play(job, None, resume=False, watcher=Watcher())
    there = played(job, tmp_path)
    assert there.summary.model_hash == here.summary.model_hash
    assert steady(there.rows) == steady(here.rows)
