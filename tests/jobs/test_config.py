"""Bad settings and bad data: always a FedsieveError that names the place."""

import dataclasses
import tomllib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsieve
from fedsieve.core.errors import ConfigError, DataError, FedsieveError
from fedsieve.core.keys import fold
from fedsieve.core.method import registered
from fedsieve.core.options import about
from fedsieve.data.sources.registry import load
from fedsieve.export import export_run
from fedsieve.jobs.config import SETTINGS, make, method_options, to_toml
from fedsieve.jobs.job import build
from fedsieve.optim.schedules import Cosine

NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10),
    st.floats(allow_nan=True),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(["auto", "none", "dirichlet(0)", "adam(", "mlp(hidden=[0])", "iid()", "1e400"]),
)
FAST = {"dataset": "digits", "model": "linear", "rounds": 1, "clients": 3}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(sorted(registered())),
    data=st.data(),
)
def test_nonsense_settings_raise_only_our_errors(method, data):
    names = [n for n in SETTINGS if n not in {"method", "workers", "data_root"}]
    names += list(method_options(registered()[method]))
    chosen = data.draw(st.dictionaries(st.sampled_from(names), NONSENSE, max_size=3))
    try:
        job = build(make(FAST | {"method": method} | chosen))
    except FedsieveError:
        return
    assert to_toml(job.config)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"rounds": -1}, "rounds=-1"),
        ({"rounds": "1e21"}, "must be >= 1 and <= 9999999"),
        ({"save_messages": -1}, "save_messages=-1"),
        ({"save_messages": [3, 0]}, "save_messages=0"),
        ({"lr": 1e30}, r"lr=1e\+30: must be <= 1000"),
        ({"method": "fedopt", "server_lr": "1e4"}, "server_lr=10000.0: must be <= 1000"),
        ({"rounds": 1.5}, "rounds=1.5"),
        ({"rounds": "many"}, "whole number"),
        ({"rounds": True}, "whole number"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"workers": 0}, "workers=0"),
        ({"seed": -1}, "seed=-1"),
        ({"validation": 0.95}, "validation"),
        ({"clients": 4, "cohort": 5}, "cohort=5 is more than clients=4"),
        ({"cohort": 2, "min_replies": 3}, "no round could ever be accepted"),
        ({"options": 3}, "table"),
        ({"method": "nothing"}, "unknown method"),
        ({"drop_last": "perhaps"}, "true or false"),
    ],
)
def test_a_bad_setting_is_named(bad, words):
    with pytest.raises(ConfigError, match=words):
        make(bad)


def test_every_setting_and_option_says_what_it_is():
    assert all(known.about.endswith(".") for known in SETTINGS.values())
    for cls in registered().values():
        assert all(about(field) for field in method_options(cls).values()), cls


def test_a_complete_configuration_reads_back_as_itself():
    job = build(make(FAST | {"method": "fedopt", "server_optimiser": "yogi(eps=0.01)"}))
    assert job.config == dataclasses.replace(build(make(tomllib.loads(to_toml(job.config)))).config)


def digits(**changes):
    return dataclasses.replace(load("digits", None, fold(0)), name="mine", **changes)


def test_nan_in_the_data_is_found_before_training():
    x = torch.zeros(20, 3)
    x[7, 1] = float("nan")
    y = torch.arange(20) % 2
    bad = fedsieve.Dataset("mine", x, y, x[:5].nan_to_num(), y[:5], "classes", 2, "rows")
    with pytest.raises(DataError, match=r"x.*7"):
        fedsieve.run(dataset=bad, rounds=1, clients=2)


def test_one_class_clients_train(tmp_path):
    result = fedsieve.run(partition="shards(1)", clients=10, cohort=10, rounds=1, model="linear")
    assert result.rows[0].failed == 0


def test_more_clients_than_examples_is_a_data_error():
    with pytest.raises(DataError, match="clients"):
        fedsieve.run(clients=5000, rounds=1)


def test_own_model_and_data_run_from_python():
    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.fc(x.flatten(1))

    first = fedsieve.run(dataset=digits(), model=Tiny, clients=3, rounds=1)
    assert first.config.model == "object:Tiny"
    assert first.config.dataset == "object:mine"
    instance = fedsieve.run(dataset=digits(), model=Tiny(), clients=3, rounds=1)
    assert instance.model.keys() == first.model.keys()


def test_a_run_on_data_handed_over_says_how_to_bring_it_again(tmp_path):
    fedsieve.run(dataset=digits(), model="linear", clients=3, rounds=1, out=tmp_path / "run")
    for again in (
        lambda: fedsieve.run(out=tmp_path / "run", resume=True, rounds=2),
        lambda: export_run(tmp_path / "run", tmp_path / "model"),
    ):
        with pytest.raises(DataError, match=r"was an object, mine, handed over.*npz:FILE"):
            again()


def test_results_do_not_depend_on_torch_threads_and_leave_them_alone():
    torch.set_num_threads(2)
    try:
        two = fedsieve.run(rounds=1, clients=3).summary.model_hash
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert fedsieve.run(rounds=1, clients=3).summary.model_hash == two


def test_a_preset_stands_for_its_options_and_those_beside_it_win():
    found = make({"method": "spafl", "preset": "paper", "clamp": False}).options
    assert found["granularity"] == "element"
    assert found["training"] == "split"
    assert found["reg_warmup"] is None
    assert found["clamp"] is False
    assert "preset" not in found
    with pytest.raises(ConfigError, match="unknown preset of SpaFL 'papers'"):
        make({"method": "spafl", "preset": "papers"})


@pytest.mark.parametrize("method", sorted(registered()))
def test_every_method_has_the_papers_options_and_every_preset_builds(method):
    presets = registered()[method].presets
    assert "paper" in presets
    for preset, options in presets.items():
        # linear has no units to cut or to match, and channels by BatchNorm need one
        is_by_norm = options.get("structure") == "hybrid"
        model = FAST | {"model": "resnet8" if is_by_norm else "mlp(hidden=[4])"}
        made = make(model | {"method": method, "preset": preset})
        assert made.options.keys() == options.keys()
        built = build(made).config
        assert {n: built.options[n] for n in made.options} == made.options  # nothing filled in
        assert build(make(tomllib.loads(to_toml(built)))).config == built


def test_what_is_as_long_as_the_run_is_filled_in_and_written_down():
    config = build(make(FAST | {"method": "fediter_ht", "rounds": 6})).config
    assert config.options["schedule"] == Cosine(until=6, floor=0.02)
    assert config.options["ramp"] == 5
    assert build(make(tomllib.loads(to_toml(config)) | {"rounds": 9})).config.options == (
        config.options
    )
