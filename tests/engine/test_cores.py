"""No more processes than can be busy."""

import logging

import pytest

import fedsieve
from fedsieve.engine.executors import cores
from fedsieve.engine.executors.pool import Pool
from small import SETTINGS, small_job, steady


@pytest.mark.parametrize(
    ("workers", "clients", "at_work", "why"),
    [
        (3, 10, 3, ""),
        (4, 10, 4, ""),
        (5, 10, 4, "workers=5 is more than the 4 cores of this machine: 4 at work"),
        (4, 3, 3, "workers=4 is more than the 3 clients of a round: 3 at work"),
        (9, None, 4, "more than the 4 cores"),
    ],
)
def test_workers_beyond_cores_and_cohort_stay_away(
    workers, clients, at_work, why, monkeypatch, caplog
):
    monkeypatch.setattr(cores, "cores", lambda: 4)
    assert cores.busy(workers, clients) == at_work
    assert bool(caplog.text) == bool(why)
    assert why in caplog.text


def test_a_run_with_too_many_workers_has_the_bits_of_one_with_one(monkeypatch, caplog):
    monkeypatch.setattr(cores, "cores", lambda: 64)
    started = []
    monkeypatch.setattr(
        "fedsieve.jobs.execution.Pool",
        lambda runtime, n, kind: started.append(n) or Pool(runtime, n, kind),
    )
    job = SETTINGS | {"rounds": 1, "cohort": 2}
    alone, many = fedsieve.run(**job), fedsieve.run(**job, workers=100)
    assert started == [2]
    assert many.summary.model_hash == alone.summary.model_hash
    assert steady(many.rows) == steady(alone.rows)
    assert "2 clients of a round" in caplog.text


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"method": "vardrop", "preset": "paper", "cohort": 3},
         "asks every client in every round, all 5 take part"),
        ({"method": "central", "cohort": 3}, "trains on all data in one place"),
        ({"partition": "natural", "dataset": "remote(owners=2, shape=[4], outputs=2)",
          "clients": None, "cohort": 3}, "no more than 2 clients"),
    ],
)  # fmt: skip
def test_a_cohort_that_is_not_used_is_spoken_of(settings, word, caplog):
    with caplog.at_level(logging.WARNING):
        small_job(**settings)
    assert "cohort=3 is not used" in caplog.text
    assert word in caplog.text


@pytest.mark.parametrize(
    "settings",
    [{"method": "vardrop", "preset": "paper", "cohort": 5}, {"method": "vardrop"}, {"cohort": 3}],
)
def test_a_cohort_that_is_used_is_not(settings, caplog):
    small_job(**settings)
    assert not caplog.text
