"""What `import fedsieve` gives: few names, short cards, tables and pictures."""

import dataclasses
import io
import subprocess
import sys
import types
import xml.etree.ElementTree as ET

import msgspec
import pytest

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.jobs import progress
from fedsieve.jobs.progress import Lines, Live, Notebook, Watcher, view
from small import SETTINGS

SVG = "{http://www.w3.org/2000/svg}"
QUICK = SETTINGS | {"rounds": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return (
        fedsieve.run(**QUICK, out=folder / "fedavg"),
        fedsieve.run(**QUICK | {"method": "spafl"}),
    )


def test_importing_the_package_and_listing_it_does_not_import_torch():
    code = "import sys, fedsieve; dir(fedsieve); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_listed_names_are_the_public_ones_and_exist():
    assert set(fedsieve.__all__) <= set(dir(fedsieve))
    assert all(getattr(fedsieve, name) is not None for name in dir(fedsieve))
    assert [n for n in dir(fedsieve) if n[0] != "_"] == sorted(fedsieve.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        fedsieve.walk  # noqa: B018


def test_a_result_is_a_short_card(runs):
    fedavg, spafl = runs
    card = repr(fedavg)
    assert len(card.splitlines()) < 10
    assert max(map(len, card.splitlines())) < 100
    summary = fedavg.summary
    sent = summary.up_bytes + summary.down_bytes
    for words in (
        "fedavg on digits", "2 (finished)", f"{summary.global_accuracy:.4f} global",
        f"{sent / 1e3:.1f} kB", str(fedavg.folder), summary.model_hash,
    ):  # fmt: skip
        assert words in card
    assert "global" not in repr(spafl)
    page = ET.fromstring(fedavg._repr_html_())
    assert len(page.findall(f".//{SVG}circle")) == 2  # a point for each round
    assert {cell.text for cell in page.iter("th")} >= {"rounds", "accuracy", "sent", "hash"}


def test_what_a_run_is_called_stays_text_in_a_notebook(runs):
    name = "<img src=x onerror=alert(1)>{0} & \"'"
    fedavg, spafl = (
        dataclasses.replace(
            run, folder=None, summary=msgspec.structs.replace(run.summary, dataset=name, score=name)
        )
        for run in runs
    )
    for shown in (fedavg, fedsieve.compare(fedavg, spafl)):
        page = ET.fromstring(shown._repr_html_())
        assert name in [cell.text for cell in page.iter("th")]
        assert list(page.iter("img")) == []


def test_a_plot_is_over_megabytes_or_rounds_and_can_be_saved(runs, tmp_path):
    fedavg, _ = runs
    places = {}
    for against in ("bytes", "rounds"):
        path = fedavg.plot(against).save(tmp_path / f"{against}.svg")
        points = ET.parse(path).getroot().findall(f".//{SVG}circle")
        places[against] = [float(p.get("data-x")) for p in points]
    first, second = (row.up_bytes + row.down_bytes for row in fedavg.rows)
    assert places == {"bytes": [first / 1e6, (first + second) / 1e6], "rounds": [1, 2]}
    with pytest.raises(ConfigError, match=r"ending in \.svg"):
        fedavg.plot().save(tmp_path / "curve.png")
    with pytest.raises(ConfigError, match="'bytes' or 'rounds'"):
        fedavg.plot("time")


def test_a_run_that_sends_nothing_is_drawn_over_rounds():
    alone = fedsieve.run(**QUICK | {"method": "local_only"})
    assert "over rounds" in repr(alone.plot())


def test_results_and_folders_are_compared_in_a_table(runs):
    fedavg, spafl = runs
    found = fedsieve.compare(fedavg.folder, spafl)
    ours, theirs = fedavg.summary, spafl.summary
    totals = [s.up_bytes + s.down_bytes for s in (ours, theirs)]
    assert found["MB"] == [total / 1e6 for total in totals]
    assert found["share"] == [1, totals[1] / totals[0]]
    assert found["score"] == [ours.global_accuracy, theirs.local_accuracy]
    assert [row["is_local"] for row in found] == [False, True]
    answer, _, head, *lines = repr(found).splitlines()
    assert answer == found.answer
    assert head.split() == ["accuracy", "density", "sent", "of", "fedavg", "seeds"]
    assert "†" in lines[1]
    page = ET.fromstring(found._repr_html_())
    assert len(page.findall(f".//{SVG}path[@class='line']")) == 4  # two curves, two in the legend
    with pytest.raises(ConfigError, match="nothing to compare"):
        fedsieve.compare()


def test_a_comparison_becomes_a_frame_where_pandas_is(runs, monkeypatch):
    found = fedsieve.compare(*runs)
    made = types.SimpleNamespace(DataFrame=lambda rows: ("frame", rows))
    monkeypatch.setitem(sys.modules, "pandas", made)
    assert found.to_pandas() == ("frame", found.rows)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        found.to_pandas()


def test_a_kept_run_comes_back_as_it_was(runs):
    fedavg, _ = runs
    again = fedsieve.load(str(fedavg.folder))
    assert (again.summary, again.rows, again.config) == (fedavg.summary, fedavg.rows, fedavg.config)
    assert again.model.keys() == fedavg.model.keys()
    assert repr(again) == repr(fedavg)


def test_plan_takes_the_keywords_of_run():
    found = fedsieve.plan(**SETTINGS)
    run = fedsieve.run(**SETTINGS)
    sent = run.summary.up_bytes + run.summary.down_bytes
    assert found.rounds == SETTINGS["rounds"]
    assert found.total_bytes == pytest.approx(sent, rel=0.05)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_where_somebody_looks(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(view(is_wanted=None)) is Watcher
    assert type(view(is_wanted=True)) is Lines
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert type(view(is_wanted=None)) is Live
    assert type(view(is_wanted=False)) is Watcher


def test_a_run_is_silent_in_a_pipe_and_tells_when_asked(capfd):
    fedsieve.run(**QUICK)
    assert capfd.readouterr() == ("", "")
    fedsieve.run(**QUICK, progress=True)
    assert "round 2/2" in capfd.readouterr().out


def test_a_notebook_gets_a_bar_that_is_redrawn(monkeypatch):
    class Handle:
        seen: list = []  # noqa: RUF012

        def update(self, shown):
            self.seen.append(shown._repr_html_())

    ZMQInteractiveShell = type("ZMQInteractiveShell", (), {})
    display = types.SimpleNamespace(display=lambda shown, display_id: Handle())
    monkeypatch.setitem(
        sys.modules, "IPython", types.SimpleNamespace(get_ipython=ZMQInteractiveShell)
    )
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0)
    assert isinstance(view(is_wanted=None), Notebook)
    assert type(view(is_wanted=False)) is Watcher
    fedsieve.run(**QUICK)
    assert 'max="2" value="1.00"' in "".join(Handle.seen)
    assert "round 2/2<br>" in Handle.seen[-1]
    assert "global 0." in Handle.seen[-1]
