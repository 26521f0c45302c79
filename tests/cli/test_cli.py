"""The command line as a user meets it."""

import inspect
import json
import os
import subprocess
import sys
import tomllib
from difflib import get_close_matches
from pathlib import Path

import pytest
from typer.main import get_command

from fedsieve.cli import names
from fedsieve.cli.app import COMMANDS, application
from fedsieve.cli.settings import MISSPELT, _spelled_out
from fedsieve.core.method import registered
from fedsieve.core.options import name_of
from fedsieve.data.sources.registry import LISTED
from fedsieve.engine.interrupt import Interrupt
from fedsieve.jobs.config import SETTINGS, method_options
from fedsieve.models.zoo.registry import MODELS

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
QUICK = ("--rounds=2", "--clients=4", "--model=mlp(hidden=[8])")


def test_run_without_a_terminal_prints_one_plain_line_per_round(cli):
    code, out, _ = cli("run", *QUICK)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("fedavg on digits")
    assert lines[1].startswith("round 1/2  global 0.")
    assert "\x1b" not in out
    assert any(line.startswith("global accuracy") for line in lines)


def test_quiet_prints_the_result_alone(cli):
    code, out, _ = cli("run", *QUICK, "--quiet")
    assert code == 0
    assert "round 1/2" not in out
    assert "fedavg on digits" in out


def test_json_is_rows_then_the_summary(cli, tmp_path):
    code, out, _ = cli("run", *QUICK, "--json", "--out", tmp_path / "run")
    assert code == 0
    first, second, summary = map(json.loads, out.splitlines())
    assert (first["round"], second["round"]) == (1, 2)
    assert summary == json.loads((tmp_path / "run" / "result.json").read_text())
    required = (
        "round seconds clients failed up_bytes down_bytes up_paper_bytes down_paper_bytes "
        "macs_dense macs_ideal macs_realisable density global_accuracy local_accuracy loss"
    )
    assert set(required.split()) <= set(first)


def test_a_file_is_overridden_by_options_and_set_reaches_the_method(cli, tmp_path):
    (tmp_path / "job.toml").write_text(
        'method = "fedprox"\nrounds = 50\nclients = 4\nmodel = "mlp(hidden=[8])"\n'
        "[options]\nproximal = 0.5\nlr = 0.2\n"
    )
    out = tmp_path / "run"
    code, _, err = cli(
        "run", tmp_path / "job.toml", "--rounds=1", "--lr=0.3", "--out", out, "-q",
        "--set", "optimiser=sgd(momentum=0.9)", "--set", "min_replies=2",
    )  # fmt: skip
    assert code == 0, err
    text = (out / "config.toml").read_text()
    for line in ("rounds = 1", "proximal = 0.5", "lr = 0.3", "min_replies = 2"):
        assert line in text
    assert 'optimiser = "sgd(momentum=0.9, weight_decay=0.0)"' in text


def test_a_run_is_resumed_from_its_folder_alone(cli, tmp_path):
    cli("run", *QUICK, "--out", tmp_path / "run", "-q")
    code, out, err = cli("run", "--out", tmp_path / "run", "--resume", "--rounds", 3)
    assert code == 0, err
    assert "rounds 3-3" in out
    assert "round 3/3" in out


def test_an_interrupted_run_exits_with_130(cli, monkeypatch):
    always = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(Interrupt, "is_asked", always, raising=False)
    code, out, _ = cli("run", *QUICK)
    assert code == 130
    assert "after round 1 of 2" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "fedprx"], ["unknown method 'fedprx'", "Did you mean 'fedprox'?"]),
        (["--dataset", "digit"], ["unknown data set 'digit'", "'digits'"]),
        (["--model", "lenet5_cafe"], ["unknown model", "'lenet5_caffe'"]),
        (["--partition", "dirichelt(1)"], ["unknown partition", "'dirichlet'"]),
        (["--partition", "dirichlet(0.5"], ["name(value, key=value)"]),
        (["--partition", "dirichlet(-1)"], ["alpha", "must be > 0"]),
        (["--set", "proximl=1"], ["unknown setting or fedavg option 'proximl'"]),
        (["--set", "roundz=1"], ["Did you mean 'rounds'?"]),
        (["--set", "novalue"], ["KEY=VALUE"]),
        (["--proximal", "1"], ["fedavg option 'proximal': it is one of", "fedprox", "Choose"]),
        (["--proximl", "1"], ["unknown setting or fedavg option 'proximl'"]),
        (["--clients", "many"], ["clients='many'", "a whole number"]),
        (["--wire", "int4"], ["wire='int4'", "'fp32' | 'bf16'"]),
        (["--cohrt=3"], ["no --cohrt. Did you mean --cohort?"]),
        (["--rounds", "0"], ["rounds=0", "must be >= 1"]),
        (["--clients", "4", "--cohort", "5"], ["cohort=5 is more than clients=4"]),
        (["--clients", "100000"], ["clients"]),
        (["--lr", "-1"], ["lr=-1.0", "must be > 0"]),
        (["--set", "lr=fast"], ["lr='fast'", "a number"]),
        (["--set", "optimiser=adagrd"], ["unknown", "'adagrad'"]),
        (["--set", "optimiser=adam(beta3=1)"], ["unknown option 'beta3'", "beta1"]),
        (["--set", "weighting=best"], ["'samples' | 'uniform'"]),
        (["missing.toml"], ["missing.toml", "cannot be read"]),
        (["--dataset", "mnist", "--data-root", "nowhere"], ["nowhere", "train-images-idx3-ubyte"]),
        (["--dataset", "npz:nothing.npz"], ["nothing.npz"]),
        (["--dataset", "python:json:nothing"], ["json", "nothing"]),
        (["--dataset", "python:os:system"], ["raised TypeError", "called without arguments"]),
        (["--dataset", "synthetic(features=1000000000000)"], ["data set synthetic", "smaller"]),
        (["--model", "mlp(hidden=[1000000000])"], ["its weights take 300 GB", "smaller"]),
        (["--model", "mlp(hidden=[1000000000000000000])"], ["model mlp", "smaller"]),
        (["--rounds=1", "--out=/dev/null/run"], ["/dev/null/run: cannot be a run folder"]),
        (["--rounds=1", "--out", "x" * 300], ["name too long"]),
        (["--model", "lenet5_caffe"], ["lenet5_caffe", "8"]),
        (["--resume"], ["give --out"]),
    ],
)
def test_bad_input_gets_one_clear_error_and_exit_code_2(cli, arguments, words, tmp_path):
    code, _, err = cli("run", *arguments)
    assert code == 2
    assert "Traceback" not in err
    text = " ".join(err.split())
    for word in words:
        assert word in text


def test_methods_are_listed_and_explained(cli):
    code, out, _ = cli("methods")
    assert code == 0
    assert all(name in out for name in registered())
    code, out, _ = cli("methods", "fedprox")
    assert "MLSys 2020" in out
    assert "proximal" in out
    assert "mu: weight of" in out
    assert cli("methods", "nothing")[0] == 2


def test_datasets_and_models_are_listed(cli, tmp_path):
    code, out, _ = cli("datasets", "--data-root", tmp_path)
    assert code == 0
    assert "digits" in out
    assert "fashion_mnist" in out
    code, out, _ = cli("models")
    assert all(name_of(model) in out for model in MODELS)


def test_partition_is_shown_with_the_fingerprint_of_the_run(cli):
    code, out, _ = cli("partition", "--clients", 6, "--partition", "shards(2)", "--show")
    assert code == 0
    fingerprint = out.split("fingerprint ")[1].split()[0]
    assert len([x for x in out.splitlines() if x.strip()[:1].isdigit()]) == 6
    _, rows, _ = cli("run", "--clients=6", "--partition=shards(2)", "--rounds=1", "--json")
    assert json.loads(rows.splitlines()[-1])["partition_fingerprint"] == fingerprint


def test_the_median_of_an_even_number_of_clients_lies_between_two_of_them(cli):
    settings = ("--clients", 4, "--partition", "quantity(0.5)")
    _, lines, _ = cli("partition", *settings, "--json")
    _, low, high, _ = sorted(json.loads(line)["train"] for line in lines.splitlines())
    assert high - low > 1
    _, out, _ = cli("partition", *settings)
    assert f"median {(low + high) / 2:g}," in out


def test_a_folder_with_brackets_is_named_as_it_is(cli, tmp_path):
    code, out, _ = cli("run", *QUICK, "--quiet", "--out", tmp_path / "[red]run")
    assert code == 0
    assert str(tmp_path / "[red]run") in out


def test_partition_as_json_counts_every_example(cli):
    _, out, _ = cli("partition", "--clients", 6, "--partition", "dirichlet(0.3)", "--json")
    shares = [json.loads(line) for line in out.splitlines()]
    assert len(shares) == 6
    for share in shares:
        assert sum(share["classes"]) == share["train"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert "Usage" in out


def test_a_path_that_cannot_be_used_is_named_without_a_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "fedsieve", "run", *QUICK, "--out", tmp_path / "file" / "run"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_the_version_is_that_of_the_package(cli):
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith(f"fedsieve {tomllib.loads(PROJECT.read_text())['project']['version']},")


HEAVY = {"torch", "numpy", "scipy", "sklearn", "jinja2", "pandas", "flwr"}


def imported_by(*arguments, **environment):
    """What a command prints, and which heavy modules it has imported."""
    code = (
        "import sys; from fedsieve.cli.app import main\n"
        "sys.argv[0] = 'fedsieve'\n"
        "try: main()\n"
        f"finally: print('HEAVY', *{HEAVY!r} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    text, _, heavy = done.stderr.rpartition("HEAVY")
    return done.stdout + text, heavy.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *([name, "--help"] for name in COMMANDS),
        ["rnu"],
        ["run", "--rouns", "3"],
        ["run", "--rounds", "many"],
        ["compare"],
        ["methods"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_help_lists_and_wrong_arguments_are_answered_without_torch(arguments):
    text, heavy = imported_by(*arguments)
    assert text
    assert heavy == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("fedsieve re", {"reproduce", "report"}),
        ("fedsieve run --error", {"--error-feedback"}),
        ("fedsieve run --method fedpr", {"fedprox"}),
        ("fedsieve run --dataset fash", {"fashion_mnist"}),
        ("fedsieve plan --model res", {"resnet8", "resnet18", "resnet20_gn"}),
        ("fedsieve run --wire ", {"fp32", "bf16", "fp16", "int8"}),
        ("fedsieve methods spa", {"spafl", "sparsyfed"}),
    ],
)
def test_the_shell_completes_commands_flags_and_names(typed, expected):
    words = typed.split(" ")
    text, heavy = imported_by(
        _FEDSIEVE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1)
    )
    assert set(text.split()) == expected
    assert heavy == []


def test_names_read_from_source_are_those_that_are_registered():
    assert list(names.methods()) == list(registered())
    for name, cls in registered().items():
        assert names.methods()[name] == inspect.getdoc(cls).split("\n")[0]
    assert names.datasets() == sorted(map(name_of, LISTED))
    assert names.models() == sorted(map(name_of, MODELS))


def test_the_nearest_command_is_suggested_once(cli):
    code, _, err = cli("rum")
    assert code == 2
    assert err.count("Did you mean 'run'?") == 1


@pytest.mark.parametrize("command", ["run", "plan", "sweep", "tune", "deploy"])
def test_every_setting_is_a_flag(command):
    flags = {f for p in get_command(application()).commands[command].params for f in p.opts}
    own = {"tune": {"--method"}}  # several, with commas
    assert {"--" + name.replace("_", "-") for name in SETTINGS} - flags <= own.get(command, set())


def test_settings_and_options_of_the_method_are_flags(cli, tmp_path):
    code, _, err = cli(
        "run", *QUICK, "--method=spafl", "--error-feedback", "--wire", "int8", "--validation=0.2",
        "--score-on", "validation", "--drop-last", "--min-replies", "2", "--state-ram-mb=50",
        "--input-scale", "unit", "--sparsity-weight", "0.001", "--no-clamp", "--lr=0.02",
        "--out", tmp_path / "a",
    )  # fmt: skip
    assert code == 0, err
    told = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    options = told.pop("options")
    expected = {
        "error_feedback": True, "wire": "int8", "validation": 0.2, "score_on": "validation",
        "drop_last": True, "min_replies": 2, "state_ram_mb": 50, "input_scale": "unit",
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected
    assert (options["sparsity_weight"], options["clamp"], options["lr"]) == (0.001, False, 0.02)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--error-feedback", "ef21"], "ef21"),
        (["--error-feedback=ahead(0.3)"], "ahead(0.3)"),
        (["--error-feedback", "--rounds", "3"], "true"),
        (["--error-feedback", "job.toml"], "true"),
        (["--error-feedback"], "true"),
        (["--no-error-feedback", "job.toml"], "false"),
    ],
)
def test_error_feedback_is_a_flag_alone_or_with_a_kind(words, expected):
    known = {f: p for p in get_command(application()).commands["run"].params for f in p.opts}
    spelled = _spelled_out(words, known)
    assert spelled[:2] == ["--error-feedback", expected]
    assert spelled[2:] == words[len(words) - len(spelled) + 2 :]


def test_no_option_of_a_method_is_taken_for_a_misspelt_flag():
    known = [p.name for p in get_command(application()).commands["run"].params]
    for cls in registered().values():
        for option in method_options(cls):
            assert not get_close_matches(option, known, cutoff=MISSPELT), option
