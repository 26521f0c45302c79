"""The judge of `make soak`: it must be able to condemn."""

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

spec = importlib.util.spec_from_file_location("soak", Path(__file__).with_name("soak.py"))
soak = importlib.util.module_from_spec(spec)
spec.loader.exec_module(soak)


@pytest.mark.parametrize(
    ("line", "outages", "is_missed"),
    [
        ({"job": "j", "round": 4, "at": 100, "taken": True}, [], True),
        ({"job": "j", "round": 4, "at": 100, "taken": True}, [(105, 106)], False),
        ({"job": "j", "round": 4, "at": 100, "taken": True}, [(50, 60), (120, 130)], True),
        ({"job": "j", "round": 4, "at": 100, "taken": False}, [], False),
        ({"job": "j", "round": 3, "at": 100, "taken": True}, [], False),
        ({"job": "other", "round": 4, "at": 100, "taken": True}, [], False),
    ],
)
def test_an_answer_that_was_taken_and_not_counted_is_found(line, outages, is_missed, tmp_path):
    judge = soak.Soak(tmp_path, seed=1)
    home = judge.deployment.run / "deploy"
    home.mkdir(parents=True)
    (home / "job").write_text("j")
    (tmp_path / "answers-1.jsonl").write_text(json.dumps(line) + "\n")
    judge.seen["job-2", 4] = 110
    judge.outages = outages
    found = judge.missed("job-2", {4: [1]})
    assert bool(found) == is_missed
    assert all("round 4: client 1 answered 10 s before" in each for each in found)
