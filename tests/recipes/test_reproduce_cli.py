"""`fedsieve reproduce` as a user meets it."""

import json

import pytest

from fedsieve.engine.interrupt import Interrupt
from fedsieve.jobs import library


def test_recipes_are_listed_with_data_and_cost(cli, tmp_path):
    code, out, _ = cli("reproduce", "--data-root", tmp_path)
    assert code == 0
    for word in ("communication_totals", "em_fashion_mnist", "smoke", "small", "full", "1500"):
        assert word in out
    assert "fashion_mnist (missing)" in out
    assert "digits (missing)" not in out
    assert "rough" in out


def test_smoke_runs_on_digits_and_a_second_call_runs_nothing(cli, tmp_path, monkeypatch):
    code, out, err = cli("reproduce", "em_fashion_mnist", "--root", tmp_path)
    assert code == 0, err
    assert "FedOpt, seed 0" in out
    assert "at least 0.75" in out
    assert "not comparable: dataset digits in place of fashion_mnist" in out
    monkeypatch.setattr(library.api, "run", lambda **_: pytest.fail("ran again"))
    code, out, _ = cli("reproduce", "em_fashion_mnist", "--root", tmp_path, "--json")
    assert code == 0
    table = json.loads(out)
    assert table["unfinished"] == []
    for line in table["lines"]:
        assert line["verdict"]["kind"] != "off"
        if line["metric"] == "paper_gbit":
            assert line["ours"]["mean"] == pytest.approx(32 * 10 * 2 * 10 * 18_710 / 1e9)


def test_totals_are_printed_and_given_as_json(cli):
    code, out, _ = cli("reproduce", "communication_totals")
    assert code == 0
    assert "137.76" in out
    assert "43 figures: 23 exact" in out
    _, out, _ = cli("reproduce", "dense_flops", "--json")
    words = [line["verdict"]["kind"] for line in json.loads(out)["lines"]]
    assert words == ["consistent", "differs", "consistent", "unexplained", "consistent"]


def test_figures_of_one_row_are_stored(cli, tmp_path):
    arguments = ("flops_smoke", "--root", tmp_path / "library", "--only", "PA")
    code, _, err = cli("reproduce", *arguments, "--write", tmp_path / "results")
    assert code == 0, err
    head, line = map(json.loads, (tmp_path / "results/flops_smoke/smoke.jsonl").open())
    assert head["command"] == "fedsieve reproduce flops_smoke --tier smoke --seeds 1 --only PA"
    assert (line["row"], line["figures"]["true_discovery"]) == ("FLoPS-PA", 1)


def test_an_interrupted_recipe_exits_with_130_and_says_what_is_left(cli, tmp_path, monkeypatch):
    always = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(Interrupt, "is_asked", always, raising=False)
    code, out, _ = cli("reproduce", "em_fashion_mnist", "--root", tmp_path)
    assert code == 130
    assert "not finished: FedAvg, seed 0; FedProx, seed 0; FedOpt, seed 0" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["em_fashion_mnst"], ["unknown recipe", "Did you mean 'em_fashion_mnist'?"]),
        (["em_fashion_mnist", "--tier", "ful"], ["unknown tier 'ful'", "'full'"]),
        (["em_fashion_mnist", "--seeds", "0"], ["seeds=0"]),
        (["em_fashion_mnist", "--workers", "0"], ["workers=0"]),
        (
            ["em_fashion_mnist", "--tier", "small", "--data-root", "nowhere"],
            ["fashion_mnist", "train-images-idx3-ubyte"],
        ),
    ],
)
def test_bad_input_gets_one_clear_error_and_exit_code_2(cli, arguments, words, tmp_path):
    code, _, err = cli("reproduce", *arguments, "--root", tmp_path / "library")
    assert code == 2
    assert not (tmp_path / "library").exists()
    for word in words:
        assert word in " ".join(err.split())
