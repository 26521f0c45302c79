"""Tuning is repeatable, fair between methods, and blind to test data."""

import json

import numpy as np
import pytest

import fedsieve
from fedsieve.cli.app import main
from fedsieve.core.errors import ConfigError, RoundError
from fedsieve.core.keys import fold, generator
from fedsieve.data.sources.registry import load
from fedsieve.jobs import library
from fedsieve.jobs.search_space import Choice, Int, Log, Uniform, read_space
from fedsieve.jobs.tune import Search, read_metric, tune
from fedsieve.report.compare import trials
from small import SETTINGS

QUICK = {n: v for n, v in SETTINGS.items() if n != "lr"} | {"rounds": 2, "clients": 3}
SPACE = read_space(["lr=log(0.01,1)", "epochs=int(1,2)"])


def search(space, **settings):
    return Search("fedavg", QUICK | settings, space, "best_global_accuracy", 9, (7,), None, (7,))


def test_ranges_are_read():
    found = read_space(
        ["lr=log(1e-4,1e-1)", "proximal=uniform(0,1)", "epochs=int(1,5)",
         "optimiser=choice(sgd, adam(beta1=0.8, beta2=0.9))"]
    )  # fmt: skip
    assert found == {
        "lr": Log(1e-4, 1e-1),
        "proximal": Uniform(0, 1),
        "epochs": Int(1, 5),
        "optimiser": Choice(("sgd", "adam(beta1=0.8, beta2=0.9)")),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "KEY=RANGE"),
        ("lr=0.1", "name or name"),
        ("lr=logg(1,2)", "Did you mean 'log'"),
        ("lr=log(0,1)", "must be > 0"),
        ("lr=uniform(2,1)", "must be > 2"),
        ("epochs=int(1.5,3)", "whole number"),
        ("optimiser=choice()", "empty"),
        ("seed=int(1,5)", "may not be tuned"),
        ("score_on=choice(test,validation)", "may not be tuned"),
    ],
)
def test_a_bad_range_is_named_with_what_is_wrong(text, words):
    with pytest.raises(ConfigError, match=words):
        read_space([text])


def test_an_unknown_setting_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="proximal"):
        tune(QUICK, read_space(["proximal=uniform(0,1)"]), tmp_path)
    with pytest.raises(ConfigError, match="unknown metric"):
        tune(QUICK, SPACE, tmp_path, metric="loss")
    assert not any(tmp_path.iterdir())


def test_draws_follow_from_seed_trial_and_name_alone():
    wide = search(SPACE | {"batch_size": Int(8, 64)})
    for trial in range(9):
        drawn = search(SPACE).draw(trial)
        assert drawn.items() <= wide.draw(trial).items()
        exponent = generator(fold(7, "tune", trial, "lr")).random()
        assert drawn["lr"] == pytest.approx(0.01 * 100**exponent, rel=1e-3)
        assert 0.01 <= drawn["lr"] <= 1
    assert {wide.draw(trial)["epochs"] for trial in range(9)} == {1, 2}
    assert len({wide.draw(trial)["lr"] for trial in range(9)}) == 9


@pytest.mark.parametrize(("own", "used"), [(0.0, 0.1), (0.05, 0.1), (0.3, 0.3)])
def test_trials_hold_out_at_least_a_tenth(own, used):
    job = search(SPACE, validation=own, score_on="test").trial_settings(0)
    assert (job["validation"], job["score_on"]) == (used, "validation")


def test_the_score_of_a_trial_does_not_depend_on_test_data(tmp_path):
    dataset = load("digits", None, fold(0, "dataset"))
    arrays = {n: getattr(dataset, n).numpy() for n in ("x", "y", "x_test", "y_test")}
    scores = {"test": [], "validation": []}
    for name, labels in (("true", arrays["y_test"]), ("false", (arrays["y_test"] + 1) % 10)):
        np.savez(tmp_path / f"{name}.npz", **arrays | {"y_test": labels})
        tried = search(SPACE, dataset=f"npz:{tmp_path / name}.npz")
        for job in (tried.trial_settings(0), *tried.final_jobs(tried.draw(0))):
            settings = {n: v for n, v in job.items() if v is not None}
            score = fedsieve.run(**settings).summary.best_global_accuracy
            scores[job["score_on"]].append(score)
    assert scores["validation"][0] == scores["validation"][1]
    assert scores["test"][0] > scores["test"][1]


def test_personal_methods_are_scored_by_their_own_models():
    assert read_metric("best", "fedavg") == "best_global_accuracy"
    assert read_metric("best", "local_only") == "best_local_accuracy"
    assert read_metric("last", "central") == "global_accuracy"
    assert read_metric("local_accuracy", "fedavg") == "best_local_accuracy"
    assert read_metric("last_local_accuracy", "fedavg") == "local_accuracy"


def test_methods_get_equal_trials_and_only_the_chosen_setting_sees_test_data(tmp_path):
    space = SPACE | {"proximal": Uniform(0, 1)}
    found = tune(
        QUICK, space, tmp_path, methods=["fedavg", "fedprox"], trials=3, rounds=1, workers=2
    )
    ran = [library.read_run(path) for path in tmp_path.iterdir()]
    tested = [r for r in ran if r.config.score_on == "test"]
    trained = [r for r in ran if r.config.score_on == "validation"]
    assert sorted(r.config.method for r in tested) == ["fedavg", "fedprox"]
    assert sorted(r.config.method for r in trained) == ["fedavg"] * 3 + ["fedprox"] * 3
    assert {(r.config.validation, r.config.rounds) for r in trained} == {(0.1, 1)}
    assert {(r.config.validation, r.config.rounds) for r in tested} == {(0.0, 2)}
    for tuning, (record,) in found:
        assert tuning.best_score == max(trial.score for trial in tuning.scores)
        assert record.config.options["lr"] == tuning.best["lr"]
        assert trials(record) == 3
        assert ("proximal" in tuning.best) == (tuning.method == "fedprox")
        written = json.loads((record.path / "tuning.json").read_text())
        assert written["best"] == tuning.best
    assert [t["lr"] for t in _values(found[0])] == [t["lr"] for t in _values(found[1])]
    again = tune(
        QUICK, space, tmp_path, methods=["fedavg", "fedprox"], trials=3, rounds=1,
        on_done=lambda done, _: done.state == "found" or pytest.fail("ran again"),
    )  # fmt: skip
    assert [tuned.tuning for tuned in again] == [tuned.tuning for tuned in found]


def test_trials_may_run_with_fewer_seeds_than_the_final_ones(tmp_path):
    ((tuning, records),) = tune(
        QUICK, SPACE, tmp_path, methods=["fedavg"], trials=2, seeds=3, trial_seeds=1
    )
    assert [len(trial.by_seed) for trial in tuning.scores] == [1, 1]
    first = QUICK["seed"]
    assert [record.config.seed for record in records] == [first, first + 1, first + 2]
    assert tuning.trial_seeds == [first]
    with pytest.raises(ConfigError, match="trial_seeds"):
        tune(QUICK, SPACE, tmp_path, trials=2, seeds=1, trial_seeds=2)


def test_a_trial_that_diverges_counts_as_worst(tmp_path, monkeypatch):
    real = library.find_or_run

    def find_or_run(settings, root, watcher=None):
        if settings["epochs"] == 1:
            raise RoundError("not finite")
        return real(settings, root, watcher)

    monkeypatch.setattr(library, "find_or_run", find_or_run)
    space = {"epochs": Int(1, 2)}
    drawn = [search(space).draw(trial)["epochs"] for trial in range(4)]
    assert set(drawn) == {1, 2}
    ((tuning, records),) = tune(QUICK, space, tmp_path, trials=4, final=False)
    assert [trial.score is None for trial in tuning.scores] == [e == 1 for e in drawn]
    assert tuning.best == {"epochs": 2}
    assert tuning.final == []
    assert (records[0].path / "tuning.json").exists()
    with pytest.raises(RoundError, match="not finite"):
        tune(QUICK, {"epochs": Int(1, 1)}, tmp_path, trials=2)


def test_the_command_tells_the_best_setting(tmp_path, monkeypatch, capsys):
    plain = [f"--set={name}={value}" for name, value in QUICK.items() if name != "rounds"]
    options = ["--space=lr=log(0.01,1)", "--trials=2", "--rounds=1", f"--root={tmp_path}"]
    monkeypatch.setattr("sys.argv", ["fedsieve", "tune", *plain, *options])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    out = capsys.readouterr().out
    assert "2/2  method=fedavg lr=" in out
    assert out.count("score_on=test") == 1
    assert "best setting" in out
    assert "tuning.json" in out


def _values(tuned):
    return [trial.values for trial in tuned.tuning.scores]
